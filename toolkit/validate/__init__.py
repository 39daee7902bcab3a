"""Is this output acceptable?"""
