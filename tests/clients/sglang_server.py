"""SGLang's server with figures of speculation, for scripts/record-servers: the options of `sglang.launch_server`.

SGLang computes on CPUs, but has no CPU kernels there that verify drafts. Its own code turns the counts below into figures.
"""

import runpy
import types

from sglang.srt.managers import tokenizer_manager as manager

figures = manager.TokenizerManager._calculate_spec_decoding_metrics


def figures_of_counts(self, meta_info, answers, i):
    answers.spec_verify_ct = [10] * (i + 1)
    answers.spec_num_correct_drafts = [14] * (i + 1)
    answers.spec_correct_drafts_histogram = [[2, 4, 2, 2]] * (i + 1)
    figures(self, meta_info, answers, i)


manager.get_spec = lambda: types.SimpleNamespace(speculative_algorithm="NGRAM", speculative_num_draft_tokens=4)
manager.TokenizerManager._calculate_spec_decoding_metrics = figures_of_counts

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
