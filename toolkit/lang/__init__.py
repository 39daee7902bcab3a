"""SGLang's front end over this toolkit's engines; the only package that imports sglang.

    import sglang as sgl
    from toolkit.lang import EmbeddedBackend, Endpoint, beam

Importing this package makes `import sglang` work on machines without a GPU set-up (see `toolkit.lang.frontend`).
"""

from toolkit.lang.frontend import load_sglang

load_sglang()

from toolkit.lang.backend import EmbeddedBackend  # noqa: E402 - sglang has to be importable first
from toolkit.lang.endpoint import Endpoint  # noqa: E402
from toolkit.lang.found import completion, result  # noqa: E402
from toolkit.lang.program import Program, load_program, run_program  # noqa: E402
from toolkit.lang.segments import Segment, beam, free  # noqa: E402
from toolkit.lang.tool_segments import tool_call  # noqa: E402
from toolkit.lang.tools import tools_schema  # noqa: E402
from toolkit.lang.watches import watch  # noqa: E402

__all__ = [
    "EmbeddedBackend",
    "Endpoint",
    "Program",
    "Segment",
    "beam",
    "completion",
    "free",
    "load_program",
    "result",
    "run_program",
    "tool_call",
    "tools_schema",
    "watch",
]
