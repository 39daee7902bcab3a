"""sgl_toolkit_cpu: what SGLang 0.5.23 does otherwise on a CPU, put right by a plugin of its own kind (entry point sglang.srt.plugins).

1. Verification samples. On a CPU SGLang commits the argmax whatever the temperature, for want of the operators; here they are.
2. A model drafts from the whole text. The worker of STANDALONE shares the loop of EAGLE, whose draft layer reads token i+1 beside the
   hidden state of token i. A model of its own has no hidden state to read: the shift only takes the first token of the text away from
   it, and a model that drafts for itself is not always accepted. `standalone` drafts unshifted.
Loaded in the server's processes only; the changes are made when the scheduler asks for its worker.
"""

from typing import Any

WORKER = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm.create_worker"


def register() -> None:
    """SGLang calls this in each of its processes, before anything else."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(WORKER, _worker_chosen, HookType.AFTER)


def _worker_chosen(worker: Any, *_: Any, **__: Any) -> Any:
    from sgl_toolkit_cpu.sampling import sample_on_cpu

    sample_on_cpu()
    if worker.__name__ == "StandaloneWorkerV2":
        from sgl_toolkit_cpu.standalone import WholeTextDraftWorker
        from sglang.srt.speculative import standalone_worker_v2

        standalone_worker_v2.StandaloneDraftWorker = WholeTextDraftWorker
    return worker
