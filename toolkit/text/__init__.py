"""Text: strings to token ids and back, chat templates, text streams that stop at stop strings.

Knows nothing about: models, engines. Import the modules; this package imports none.
"""
