"""Table: the formats of tool calls. A new one is one file and one row here; laws, grammar tests and the peers' table follow."""

from __future__ import annotations

from functools import lru_cache

from toolkit.plugins import Table
from toolkit.validate.tools.format import ToolFormat

FORMATS = Table(
    "tool format",
    {
        # In the order in which a chat template is asked whether it is one: the more special before hermes.
        "qwen3_coder": "toolkit.validate.tools.qwen3_coder:Qwen3Coder",
        "glm45": "toolkit.validate.tools.glm45:Glm45",
        "deepseek": "toolkit.validate.tools.deepseek:DeepSeek",
        "mistral": "toolkit.validate.tools.mistral:Mistral",
        "hermes": "toolkit.validate.tools.hermes:Hermes",
        "llama3": "toolkit.validate.tools.llama3:Llama3",
        "json": "toolkit.validate.tools.plain_json:PlainJson",
        "openai": "toolkit.validate.tools.openai:OpenAi",
    },
)
# Names that SGLang and vLLM have for them.
ALIASES = {
    "qwen": "hermes", "qwen25": "hermes", "qwen3_xml": "qwen3_coder", "glm": "glm45", "glm47": "glm45", "llama3_json": "llama3",
    "deepseekv3": "deepseek", "deepseekv31": "deepseek", "deepseek_v3": "deepseek", "deepseek_v31": "deepseek",
}  # fmt: skip


@lru_cache(maxsize=64)
def format_named(name: str) -> ToolFormat:
    """The format called `name`, or one of ALIASES. Raises UsageError, which lists those known."""
    found: type[ToolFormat] = FORMATS.load(ALIASES.get(name, name))
    return found()


def format_of_template(template: str) -> str | None:
    """Name of the format that a chat template writes calls in, None where it holds the signs of none."""
    named = [(name, format_named(name).signs) for name in FORMATS]
    return next((name for name, signs in named if signs and all(sign in template for sign in signs)), None)
