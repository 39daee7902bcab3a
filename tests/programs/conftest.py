"""Loading the package first makes `import sglang` work where only its front end's dependencies are installed."""

import toolkit.lang  # noqa: F401
