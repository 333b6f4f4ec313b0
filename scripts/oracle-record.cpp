// Records log-probabilities of llama.cpp, for tests to compare with. `scripts/oracle` builds and runs it.
//
// usage: oracle-record MODEL CONTEXT GREEDY ID...     or     oracle-record MODEL CONTEXT GREEDY --text FILE
//
// Reads the tokens, continues with GREEDY likeliest tokens, and prints one line of JSON: the token ids that it read,
// the greedy ids, and the 8 likeliest tokens after each position with their natural log-probabilities. With greedy
// tokens, only the positions that predict them are listed.

#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

static const size_t LISTED = 8;

static void quiet(ggml_log_level level, const char *text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        fputs(text, stderr);
    }
}

static void print_ids(const char *name, const std::vector<llama_token> &ids) {
    printf("\"%s\":[", name);
    for (size_t i = 0; i < ids.size(); i++) {
        printf("%s%d", i ? "," : "", ids[i]);
    }
    printf("],");
}

/// Formats the likeliest tokens and their log-probabilities.
static std::string likeliest(const float *logits, int n_vocab) {
    double max = logits[0], sum = 0;
    for (int i = 0; i < n_vocab; i++) {
        max = std::max(max, (double) logits[i]);
    }
    for (int i = 0; i < n_vocab; i++) {
        sum += std::exp(logits[i] - max);
    }
    std::vector<int> order(n_vocab);
    for (int i = 0; i < n_vocab; i++) {
        order[i] = i;
    }
    const size_t count = std::min(LISTED, (size_t) n_vocab);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int a, int b) {
        return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });
    std::string out = "[";
    char entry[64];
    for (size_t i = 0; i < count; i++) {
        const double log_p = logits[order[i]] - max - std::log(sum);
        snprintf(entry, sizeof entry, "%s[%d,%.5f]", i ? "," : "", order[i], log_p);
        out += entry;
    }
    return out + "]";
}

static std::vector<llama_token> tokenize(const llama_vocab *vocab, const char *file) {
    std::ifstream in(file);
    std::stringstream text;
    text << in.rdbuf();
    const std::string prompt = text.str();
    std::vector<llama_token> ids(prompt.size() + 8);
    const int n = llama_tokenize(vocab, prompt.c_str(), prompt.size(), ids.data(), ids.size(), true, true);
    ids.resize(std::max(n, 0));
    return ids;
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: oracle-record MODEL CONTEXT GREEDY ID...|--text FILE\n");
        return 2;
    }
    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    llama_model *model = llama_model_load_from_file(argv[1], model_params);
    if (!model) {
        fprintf(stderr, "%s was not loaded\n", argv[1]);
        return 1;
    }
    llama_context_params params = llama_context_default_params();
    params.n_ctx = atoi(argv[2]);
    params.n_batch = params.n_ubatch = params.n_ctx;
    params.n_threads = params.n_threads_batch = 2;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full = true;
    llama_context *context = llama_init_from_model(model, params);
    if (!context) {
        return 1;
    }
    const llama_vocab *vocab = llama_model_get_vocab(model);
    const int n_vocab = llama_vocab_n_tokens(vocab);
    std::vector<llama_token> ids;
    if (strcmp(argv[4], "--text") == 0) {
        ids = tokenize(vocab, argv[5]);
    } else {
        for (int i = 4; i < argc; i++) {
            ids.push_back(atoi(argv[i]));
        }
    }
    const int greedy = atoi(argv[3]);
    std::vector<llama_token> written;
    std::string listed;
    std::vector<llama_token> next = ids;
    int position = 0;
    for (int round = 0; round <= greedy && !next.empty(); round++) {
        llama_batch batch = llama_batch_init(next.size(), 0, 1);
        batch.n_tokens = next.size();
        for (size_t i = 0; i < next.size(); i++) {
            batch.token[i] = next[i];
            batch.pos[i] = position + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(context, batch) != 0) {
            fprintf(stderr, "llama_decode failed\n");
            return 1;
        }
        position += next.size();
        const size_t first = greedy ? next.size() - 1 : 0;
        for (size_t i = first; i < next.size() && (greedy == 0 || round < greedy); i++) {
            listed += (listed.empty() ? "" : ",") + likeliest(llama_get_logits_ith(context, i), n_vocab);
        }
        const float *last = llama_get_logits_ith(context, next.size() - 1);
        const llama_token best = std::max_element(last, last + n_vocab) - last;
        next.assign(1, best);
        if (round < greedy) {
            written.push_back(best);
        }
        llama_batch_free(batch);
        if (greedy == 0 || llama_vocab_is_eog(vocab, best)) {
            break;
        }
    }
    printf("{");
    print_ids("prompt_ids", ids);
    print_ids("greedy_ids", written);
    printf("\"top8_logprobs\":[%s]}\n", listed.c_str());
    return 0;
}
