"""Standalone drafting from the whole text: the draft model's token i is the text's token i, at its position, in its slot.

State between rounds, L tokens committed and one more, the bonus, certain: the draft model's KV holds tokens 0..L-1 in their slots.
A round: read the bonus at position L, then `steps - 1` levels of candidates at L+1, L+2, ...; after the target's verdict read the
accepted tokens anew, at the positions where the target read them. That is one pass more than SGLang's own loop has, which starts from the
logits of the last verdict.
In trees the candidates that go on may descend from another branch than the one whose row they take; SGLang's loop leaves that row's
KV as it is, so that they are scored after tokens that are not theirs. Here rows take the slots of their ancestors along.
Knows nothing about: the target, which decides as before.
Source: sglang 0.5.23, speculative/{eagle_worker_v2,standalone_worker_v2}.py (the loop that is replaced); drafting 2211.17192.
"""

import copy
from typing import Any

import torch
from sgl_kernel import build_draft_decode_metadata_cpu
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend, IntelAMXMultiStepDraftBackend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput
from sglang.srt.speculative.eagle_utils import organize_draft_results, per_step_draft_out_cache_loc
from sglang.srt.speculative.spec_utils import fast_topk, select_top_k_tokens
from sglang.srt.speculative.standalone_worker_v2 import StandaloneDraftWorker


class DraftBackend(IntelAMXMultiStepDraftBackend):
    """Attention of `steps` drafting passes: the bonus and every level that is read."""

    def __init__(self, model_runner: Any, topk: int, steps: int) -> None:
        super().__init__(model_runner, topk, steps)
        self.attn_backends.append(IntelAMXAttnBackend(model_runner))
        self.table = torch.empty(0)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        pool = self.attn_backends[0].req_to_token_pool.req_to_token
        lengths, rows = forward_batch.seq_lens, forward_batch.req_pool_indices
        steps = self.speculative_num_steps
        self.table = build_draft_decode_metadata_cpu(pool, rows, lengths, self.topk, steps, self.pool_len)
        numbers = torch.arange(self.table.shape[0])
        for step, backend in enumerate(self.attn_backends):
            backend.forward_metadata = (torch.empty(0), None)  # scratch space of a compiled operator
            backend.draft_decode_metadata = (self.table, lengths.repeat_interleave(self.topk) + step + 1, numbers)

    def follow(self, parents: torch.Tensor, lengths: list[int], level: int) -> None:
        """Row j of every request takes the slots after its sequence, `level` of them, from row parents[b, j]."""
        for b, length in enumerate(lengths):
            rows = self.table[b * self.topk : (b + 1) * self.topk, length : length + level]
            rows.copy_(rows[parents[b]])


class WholeTextDraftWorker(StandaloneDraftWorker):
    """In the place of SGLang's own draft worker of STANDALONE."""

    def init_attention_backend(self) -> None:
        super().init_attention_backend()
        self.draft_attn_backend = DraftBackend(self.draft_runner, self.topk, self.speculative_num_steps)
        self.draft_runner.draft_attn_backend = self.draft_attn_backend

    def _draft_extend_for_prefill(
        self,
        batch: Any,
        target_hidden_states: Any,
        next_token_ids: torch.Tensor,
        mm_input_embeds: Any = None,
        kv_loc_plan: Any = None,
    ) -> Any:
        """Read the prompt as it is. What follows the bonus is not known yet: the next round reads the bonus."""
        batch.spec_info = EagleDraftExtendInput(num_tokens_per_req=1, num_tokens_for_logprob_per_req=1)
        forward_batch = ForwardBatch.init_new(
            batch,
            self.draft_runner,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False,
            kv_loc_plan=kv_loc_plan,
        )
        forward_batch.return_logprob = False
        self.draft_runner.forward(forward_batch)
        shape = (next_token_ids.shape[0], self.topk)
        return EagleDraftInput(
            topk_p=torch.zeros(shape),
            topk_index=torch.zeros(shape, dtype=torch.long),
            bonus_tokens=next_token_ids,
            num_tokens_per_req=1,
            num_tokens_for_logprob_per_req=1,
        )

    def _draft_extend_for_decode(self, batch: Any, batch_result: Any, *, kv_loc_plan: Any = None) -> None:
        """Read what the target read, the tree's root and the accepted nodes, instead of what it answered."""
        count = self.speculative_num_draft_tokens
        root = batch.spec_info.draft_token.view(-1, count)[:, :1]
        answers = batch_result.next_token_ids.view(-1, count)
        read = copy.copy(batch_result)
        read.next_token_ids = torch.cat((root.to(answers.dtype), answers[:, :-1]), 1).flatten()
        super()._draft_extend_for_decode(batch, read, kv_loc_plan=kv_loc_plan)

    def draft_forward(self, forward_batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        """The tree's (parents, chosen candidates, their tokens); its probabilities are not kept."""
        topk, steps, batch = self.topk, self.speculative_num_steps, forward_batch.batch_size
        slots = per_step_draft_out_cache_loc(forward_batch.out_cache_loc, batch, topk, steps)
        lengths = forward_batch.seq_lens.tolist()
        if steps == 1:  # SGLang has not prepared a batch that it would not have run
            self.draft_attn_backend.init_forward_metadata(forward_batch)
            forward_batch.mark_forward_metadata_ready()
        bonus = forward_batch.spec_info.bonus_tokens.long().repeat_interleave(topk)
        logits = self._read(forward_batch, 0, bonus, slots)[::topk]  # the rows of a request are alike here
        probs, tokens = fast_topk(torch.softmax(logits, -1), topk, dim=-1)
        scores, levels = None, []
        for level in range(steps):
            chosen, _, scores, found = select_top_k_tokens(level, probs, tokens, None, scores, topk)
            levels.append(found)
            if level == steps - 1:
                break
            if level > 0:
                parents = (found[2] - (topk * topk * (level - 1) + topk)) // topk
                self.draft_attn_backend.follow(parents, lengths, level + 1)
            logits = self._read(forward_batch, level + 1, chosen, slots)
            probs, tokens = fast_topk(torch.softmax(logits, -1), topk, dim=-1)
        parts = ([level[part] for level in levels] for part in range(3))
        return *organize_draft_results(*parts, self.speculative_num_draft_tokens), None

    def _read(self, forward_batch: Any, step: int, tokens: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """One pass over a token in every row: logits [B x topk, V]; positions go on by one."""
        forward_batch.input_ids, forward_batch.out_cache_loc = tokens, slots[step]
        forward_batch.spec_info.hidden_states = None
        context = ForwardContext(attn_backend=self.draft_attn_backend.attn_backends[step])
        with forward_context(context, forward_batch=forward_batch):
            logits: torch.Tensor = self.draft_runner.forward(forward_batch).logits_output.next_token_logits
        forward_batch.positions.add_(1)
        return logits
