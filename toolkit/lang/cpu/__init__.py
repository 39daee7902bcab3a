"""SGLang's server without a GPU: stand-ins for what has no build for such a machine. Nothing is imported here, see `packages`."""
