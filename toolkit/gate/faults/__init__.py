"""Faults: ways in which an engine breaks, planted on purpose into one engine. One module a fault, one row in FAULTS each.

A module has NAME, WHY (what broke where, in public), CATCH (the part of the gate that has to catch it), where it needs another engine
than most an ARM of toolkit.gate.teeth, and `break_(engine)`: from then on that engine has the fault. Never on an engine that is in use
elsewhere. DRILLED are those that write wrong text whatever the model and its drafter are: the drill plants them.
"""

from __future__ import annotations

from toolkit.plugins import Table

FAULTS = Table(
    "fault",
    {
        "bias_at_first_token_only": "toolkit.gate.faults.bias_at_first_token_only:break_",
        "bonus_from_wrong_row": "toolkit.gate.faults.bonus_from_wrong_row:break_",
        "bonus_token_greedy": "toolkit.gate.faults.bonus_token_greedy:break_",
        "brace_doubled": "toolkit.gate.faults.brace_doubled:break_",
        "branch_not_moved": "toolkit.gate.faults.branch_not_moved:break_",
        "cache_of_another_model": "toolkit.gate.faults.cache_of_another_model:break_",
        "copied_backwards": "toolkit.gate.faults.copied_backwards:break_",
        "counters_off_by_one": "toolkit.gate.faults.counters_off_by_one:break_",
        "draft_not_rolled_back": "toolkit.gate.faults.draft_not_rolled_back:break_",
        "draft_probability_ignored": "toolkit.gate.faults.draft_probability_ignored:break_",
        "end_in_draft_ignored": "toolkit.gate.faults.end_in_draft_ignored:break_",
        "event_doubled": "toolkit.gate.faults.event_doubled:break_",
        "event_dropped": "toolkit.gate.faults.event_dropped:break_",
        "events_reordered": "toolkit.gate.faults.events_reordered:break_",
        "generator_restarted": "toolkit.gate.faults.generator_restarted:break_",
        "grammar_behind_bonus": "toolkit.gate.faults.grammar_behind_bonus:break_",
        "head_of_another_base": "toolkit.gate.faults.head_of_another_base:break_",
        "kv_quantised_too_hard": "toolkit.gate.faults.kv_quantised_too_hard:break_",
        "logprobs_are_zero": "toolkit.gate.faults.logprobs_are_zero:break_",
        "logprobs_of_wrong_row": "toolkit.gate.faults.logprobs_of_wrong_row:break_",
        "mask_of_wrong_row": "toolkit.gate.faults.mask_of_wrong_row:break_",
        "max_tokens_overrun": "toolkit.gate.faults.max_tokens_overrun:break_",
        "min_p_skipped": "toolkit.gate.faults.min_p_skipped:break_",
        "min_tokens_ignored": "toolkit.gate.faults.min_tokens_ignored:break_",
        "one_random_number": "toolkit.gate.faults.one_random_number:break_",
        "penalties_ignored": "toolkit.gate.faults.penalties_ignored:break_",
        "penalty_once_per_burst": "toolkit.gate.faults.penalty_once_per_burst:break_",
        "position_off_by_one": "toolkit.gate.faults.position_off_by_one:break_",
        "prefix_collision": "toolkit.gate.faults.prefix_collision:break_",
        "refused_drafts_penalised": "toolkit.gate.faults.refused_drafts_penalised:break_",
        "relaxed_acceptance": "toolkit.gate.faults.relaxed_acceptance:break_",
        "residual_not_renormalised": "toolkit.gate.faults.residual_not_renormalised:break_",
        "rows_of_two_requests_swapped": "toolkit.gate.faults.rows_of_two_requests_swapped:break_",
        "seed_shared_by_rows": "toolkit.gate.faults.seed_shared_by_rows:break_",
        "sibling_visible": "toolkit.gate.faults.sibling_visible:break_",
        "stale_after_copy": "toolkit.gate.faults.stale_after_copy:break_",
        "stale_kv": "toolkit.gate.faults.stale_kv:break_",
        "stop_missed": "toolkit.gate.faults.stop_missed:break_",
        "temperature_ignored": "toolkit.gate.faults.temperature_ignored:break_",
        "token_dropped": "toolkit.gate.faults.token_dropped:break_",
        "token_duplicated": "toolkit.gate.faults.token_duplicated:break_",
        "tokens_fused": "toolkit.gate.faults.tokens_fused:break_",
        "tokens_swapped": "toolkit.gate.faults.tokens_swapped:break_",
        "top_k_before_top_p": "toolkit.gate.faults.top_k_before_top_p:break_",
        "utf8_cut": "toolkit.gate.faults.utf8_cut:break_",
        "verify_sees_only_its_chunk": "toolkit.gate.faults.verify_sees_only_its_chunk:break_",
    },
)

DRILLED = (
    "token_dropped",
    "token_duplicated",
    "tokens_swapped",
    "tokens_fused",
    "stale_kv",
    "stop_missed",
    "brace_doubled",
    "utf8_cut",
)
