"""SGLang's front end; the only package that imports sglang."""
