// A program that embeds stock llama.cpp and runs the commands on its stdin, line by line, for the
// tests of the backend. It uses the public headers only, and is compiled at test time (engines.py).
//
//   llama_driver LIBS MODEL key=value...
//     sequences, unified, threads, context (tokens of a sequence), keys (ggml's number of a type),
//     flash, eval (whether the context has the callback of ckv_eval.h)
//
//   restore SEQUENCE FILE            ok COUNT          a sequence state, its tokens
//   attach SEQUENCE CORPUS POSITION  ok NEXT           by the backend's ckv_attach
//   copy FROM TO                     ok                llama_memory_seq_cp
//   remove SEQUENCE BEGIN END        ok                llama_memory_seq_rm
//   decode FILE S:P:T...             rc CODE MICROSECONDS
//       one batch of tokens T at positions P of sequences S; their logits are written to FILE
//   last SEQUENCE                    ok POSITION       the last that the cache has
//   context                          ok                another context like this, freed at once
//   session                          ok                another session of ckv_eval.h, likewise
//   check                            ok CODE LINES     by ckv_check; "|" marks an end of line
//   counter NAME                     ok VALUE
// Any other failure is answered with "failed".

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "client/bindings/ggml/ckv_eval.h"
#include "client/bindings/ggml/ckv_ggml.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama.h"

namespace {

constexpr int kBatch = 512;

using Options = std::map<std::string, int>;

int Number(const Options& options, const std::string& key, int unset) {
  const auto found = options.find(key);
  return found == options.end() ? unset : found->second;
}

class Driver {
 public:
  Driver(const char* libraries, const char* model, const Options& options) {
    ggml_backend_load_all_from_path(libraries);
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    model_ = llama_model_load_from_file(model, llama_model_default_params());
    if (model_ == nullptr) std::exit(2);
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    llama_context_params params = llama_context_default_params();
    params.n_seq_max = static_cast<uint32_t>(Number(options, "sequences", 1));
    params.kv_unified = Number(options, "unified", 0) != 0;
    stream_count_ = params.kv_unified ? 1 : params.n_seq_max;
    params.n_ctx = static_cast<uint32_t>(Number(options, "context", 4096)) * params.n_seq_max;
    params.n_batch = kBatch;
    params.n_threads = params.n_threads_batch = Number(options, "threads", 1);
    params.type_k = params.type_v = static_cast<ggml_type>(Number(options, "keys", GGML_TYPE_BF16));
    params.flash_attn_type = Number(options, "flash", 1) != 0 ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                              : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    has_eval_ = Number(options, "eval", 0) != 0;
    if (has_eval_) {
      if (!eval_.Open(1)) std::exit(2);
      eval_.SetUp(params);
    }
    params_ = params;
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) std::exit(2);
    backend_ = ggml_backend_reg_by_name("CKV");
  }

  std::string Do(std::istringstream line) {
    std::string verb;
    line >> verb;
    if (verb == "restore") return Restore(line);
    if (verb == "attach") return Attach(line);
    if (verb == "decode") return Decode(line);
    if (verb == "check") return Check();
    if (verb == "session") return ckv_llama::Eval().Open(1) ? "ok" : "failed";
    if (verb == "context") {
      llama_context_params params = params_;
      params.cb_eval = nullptr;
      llama_context* another = llama_init_from_model(model_, params);
      if (another == nullptr) return "failed";
      llama_free(another);
      return "ok";
    }
    int a = 0, b = 0, c = 0;
    if (verb == "copy" && line >> a >> b) {
      llama_memory_seq_cp(llama_get_memory(context_), a, b, -1, -1);
      return "ok";
    }
    if (verb == "remove" && line >> a >> b >> c) {
      return llama_memory_seq_rm(llama_get_memory(context_), a, b, c) ? "ok" : "failed";
    }
    if (verb == "last" && line >> a) {
      return "ok " + std::to_string(llama_memory_seq_pos_max(llama_get_memory(context_), a));
    }
    std::string name;
    const auto counter = Function<ckv_counter_t>("ckv_counter");
    if (verb == "counter" && counter != nullptr && line >> name) {
      return "ok " + std::to_string(counter(name.c_str()));
    }
    return "failed";
  }

 private:
  template <typename Pointer>
  Pointer Function(const char* name) const {
    if (backend_ == nullptr) return nullptr;
    return reinterpret_cast<Pointer>(ggml_backend_reg_get_proc_address(backend_, name));
  }

  std::string Restore(std::istringstream& line) {
    int sequence = 0;
    std::string path;
    line >> sequence >> path;
    std::vector<llama_token> tokens(1 << 20);
    size_t count = 0;
    if (llama_state_seq_load_file(context_, path.c_str(), sequence, tokens.data(), tokens.size(),
                                  &count) == 0) {
      return "failed";
    }
    return "ok " + std::to_string(count);
  }

  std::string Attach(std::istringstream& line) {
    int sequence = 0;
    std::string corpus;
    int64_t position = 0, next = 0;
    line >> sequence >> corpus >> position;
    const auto attach = Function<ckv_attach_t>("ckv_attach");
    if (attach == nullptr) return "failed";
    const int64_t bytes =
        attach(corpus.c_str(), nullptr, position, stream_count_, nullptr, 0, &next);
    if (bytes < 0) return "failed";
    std::vector<uint8_t> state(static_cast<size_t>(bytes));
    attach(corpus.c_str(), nullptr, position, stream_count_, state.data(), state.size(), nullptr);
    if (llama_state_seq_set_data(context_, state.data(), state.size(), sequence) != state.size()) {
      return "failed";
    }
    return "ok " + std::to_string(next);
  }

  std::string Decode(std::istringstream& line) {
    std::string path, word;
    line >> path;
    llama_batch batch = llama_batch_init(kBatch, 0, 1);
    while (line >> word && batch.n_tokens < kBatch) {
      const int i = batch.n_tokens++;
      batch.n_seq_id[i] = 1;
      batch.logits[i] = 1;
      if (std::sscanf(word.c_str(), "%d:%d:%d", &batch.seq_id[i][0], &batch.pos[i],
                      &batch.token[i]) != 3) {
        return "failed";
      }
    }
    const int64_t begin = ggml_time_us();
    const int code = has_eval_ ? eval_.Decode(context_, batch) : llama_decode(context_, batch);
    const int64_t elapsed = ggml_time_us() - begin;
    if (code == 0) {
      std::FILE* out = std::fopen(path.c_str(), "wb");
      if (out == nullptr) return "failed";
      for (int i = 0; i < batch.n_tokens; ++i) {
        std::fwrite(llama_get_logits_ith(context_, i), sizeof(float),
                    static_cast<size_t>(vocabulary_), out);
      }
      std::fclose(out);
    }
    llama_batch_free(batch);
    return "rc " + std::to_string(code) + " " + std::to_string(elapsed);
  }

  std::string Check() {
    const auto check = Function<ckv_check_t>("ckv_check");
    if (check == nullptr) return "failed";
    std::vector<char> text(4096);
    const int code = check(text.data(), text.size());
    std::string lines = text.data();
    std::replace(lines.begin(), lines.end(), '\n', '|');
    return "ok " + std::to_string(code) + " " + lines;
  }

  ckv_llama::Eval eval_;
  bool has_eval_ = false;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  llama_context_params params_{};
  ggml_backend_reg_t backend_ = nullptr;
  int vocabulary_ = 0;
  uint32_t stream_count_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  Options options;
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return 2;
    options[word.substr(0, equals)] = std::atoi(word.c_str() + equals + 1);
  }
  Driver driver(argv[1], argv[2], options);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << driver.Do(std::istringstream(line)) << std::endl;
  }
  std::_Exit(0);  // the libraries' own destructors are not ours to test
}
