// A program that embeds stock llama.cpp, for llama_e2e.py. It uses the public headers only, and is
// compiled at test time against the release that npm has (engines.py).
//
//   llama_host model OUT.gguf [LAYERS HEADS]
//       writes a random model with MLA: deepseek2, 2 layers and 4 heads unless given,
//       rows of 512 + 64, YaRN x40. With 27 layers its queries have no rank, as V2-Lite's
//   llama_host run LIBS MODEL key=value...
//       tokens=FILE      i32: prefilled from `position` on
//       state=FILE       a sequence state, restored instead
//       save=FILE        the state after either
//       suffix=FILE      i32: decoded in one batch behind it
//       logits=FILE      f32 [suffix and greedy tokens][vocabulary], written
//       position, sequence, streams, greedy, keys (ggml's number of a type), threads,
//       context (tokens of a sequence)
//     prints the greedy tokens. Exit code 3: the engine refused the state.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml.h"
#include "gguf.h"
#include "llama.h"

namespace {

constexpr int kBatch = 512, kContext = 4096;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "llama_host: %s\n", what);
  std::exit(1);
}

// ---- the model

constexpr int kHidden = 128, kVocabulary = 512, kQueryRank = 64;
constexpr int kLatent = 512, kRope = 64, kNope = 64, kValue = 64, kMlp = 128;

class ModelWriter {
 public:
  ModelWriter(int layers, int heads)
      : layers_(layers),
        heads_(heads),
        tensors_(ggml_init({static_cast<size_t>(1 + layers * (1 + heads)) << 20, nullptr, false})),
        file_(gguf_init_empty()) {}

  void WriteNumbers() {
    gguf_set_val_str(file_, "general.architecture", "deepseek2");
    gguf_set_val_str(file_, "general.name", "tiny-mla-random");
    const auto layers = static_cast<uint32_t>(layers_);
    const std::map<std::string, uint32_t> numbers = {
        {"block_count", layers},
        {"context_length", 163840},
        {"embedding_length", kHidden},
        {"feed_forward_length", kMlp},
        {"attention.head_count", static_cast<uint32_t>(heads_)},
        {"attention.head_count_kv", 1},
        {"leading_dense_block_count", layers},
        {"vocab_size", kVocabulary},
        {"attention.q_lora_rank", kQueryRank},
        {"attention.kv_lora_rank", kLatent},
        {"attention.key_length", kLatent + kRope},
        {"attention.value_length", kLatent},
        {"attention.key_length_mla", kNope + kRope},
        {"attention.value_length_mla", kValue},
        {"rope.dimension_count", kRope},
        {"expert_feed_forward_length", kMlp},
        {"expert_shared_count", 0},
        {"rope.scaling.original_context_length", 4096}};
    for (const auto& [name, value] : numbers) {
      gguf_set_val_u32(file_, ("deepseek2." + name).c_str(), value);
    }
    gguf_set_val_f32(file_, "deepseek2.rope.freq_base", 10000);
    gguf_set_val_f32(file_, "deepseek2.attention.layer_norm_rms_epsilon", 1e-6f);
    gguf_set_val_str(file_, "deepseek2.rope.scaling.type", "yarn");
    gguf_set_val_f32(file_, "deepseek2.rope.scaling.factor", 40);
    gguf_set_val_f32(file_, "deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
  }

  // A byte is the token of its value + 3. node-llama-cpp refuses a model without a tokenizer.
  void WriteTokenizer() {
    std::vector<std::string> names = {"<unk>", "<s>", "</s>"};
    std::vector<int32_t> kinds = {2, 3, 3};
    for (int i = 3; i < kVocabulary; ++i) {
      char name[16];
      std::snprintf(name, sizeof(name), i < 259 ? "<0x%02X>" : "\xe2\x96\x81w%d",
                    i < 259 ? i - 3 : i);
      names.push_back(name);
      kinds.push_back(i < 259 ? 6 : 1);
    }
    std::vector<const char*> texts;
    std::vector<float> scores;
    for (const std::string& name : names) {
      scores.push_back(-static_cast<float>(texts.size()));
      texts.push_back(name.c_str());
    }
    gguf_set_val_str(file_, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(file_, "tokenizer.ggml.tokens", texts.data(), texts.size());
    gguf_set_arr_data(file_, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(),
                      scores.size());
    gguf_set_arr_data(file_, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, kinds.data(),
                      kinds.size());
    gguf_set_val_u32(file_, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(file_, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_u32(file_, "tokenizer.ggml.unknown_token_id", 0);
  }

  // Gaussian weights of this deviation; with 0, ones.
  void Add(const std::string& name, std::vector<int64_t> shape, float deviation) {
    ggml_tensor* tensor =
        ggml_new_tensor(tensors_, GGML_TYPE_F32, static_cast<int>(shape.size()), shape.data());
    ggml_set_name(tensor, name.c_str());
    std::normal_distribution<float> weight(0, deviation > 0 ? deviation : 1);
    auto* values = static_cast<float*>(tensor->data);
    for (int64_t i = 0; i < ggml_nelements(tensor); ++i) {
      values[i] = deviation > 0 ? weight(rng_) : 1;
    }
    gguf_add_tensor(file_, tensor);
  }
  // The deviation that keeps a product's size.
  void AddMatrix(const std::string& name, std::vector<int64_t> shape, float gain = 1) {
    const float width = static_cast<float>(shape[0]);
    Add(name, std::move(shape), gain / std::sqrt(width));
  }

  void AddLayer(const std::string& block) {
    for (const auto& [name, width] : std::map<std::string, int64_t>{
             {"attn_norm", kHidden}, {"attn_kv_a_norm", kLatent}, {"ffn_norm", kHidden}}) {
      Add(block + name + ".weight", {width}, 0);
    }
    if (layers_ == 27) {  // llama.cpp recognizes V2-Lite by this
      AddMatrix(block + "attn_q.weight", {kHidden, heads_ * (kNope + kRope)}, 3);
    } else {
      Add(block + "attn_q_a_norm.weight", {kQueryRank}, 0);
      AddMatrix(block + "attn_q_a.weight", {kHidden, kQueryRank});
      AddMatrix(block + "attn_q_b.weight", {kQueryRank, heads_ * (kNope + kRope)}, 3);
    }
    AddMatrix(block + "attn_kv_a_mqa.weight", {kHidden, kLatent + kRope});
    Add(block + "attn_k_b.weight", {kNope, kLatent, heads_}, 1 / std::sqrt(float{kLatent}));
    AddMatrix(block + "attn_v_b.weight", {kLatent, kValue, heads_});
    // All layers together add as much as two: rounding would grow from layer to layer.
    const float depth = std::sqrt(2 / static_cast<float>(layers_));
    AddMatrix(block + "attn_output.weight", {heads_ * kValue, kHidden}, 3 * depth);
    AddMatrix(block + "ffn_gate.weight", {kHidden, kMlp});
    AddMatrix(block + "ffn_up.weight", {kHidden, kMlp});
    AddMatrix(block + "ffn_down.weight", {kMlp, kHidden}, depth);
  }

  void Write(const char* path) {
    WriteNumbers();
    WriteTokenizer();
    Add("token_embd.weight", {kHidden, kVocabulary}, 1);
    Add("output_norm.weight", {kHidden}, 0);
    AddMatrix("output.weight", {kHidden, kVocabulary});
    for (int i = 0; i < layers_; ++i) AddLayer("blk." + std::to_string(i) + ".");
    if (!gguf_write_to_file(file_, path, false)) Die("cannot write the model");
  }

 private:
  std::mt19937 rng_{7};
  const int64_t layers_, heads_;
  ggml_context* tensors_;
  gguf_context* file_;
};

// ---- the engine

using Options = std::map<std::string, std::string>;

std::string Text(const Options& options, const std::string& key) {
  const auto found = options.find(key);
  return found == options.end() ? "" : found->second;
}
int Number(const Options& options, const std::string& key, int unset) {
  const std::string text = Text(options, key);
  return text.empty() ? unset : std::atoi(text.c_str());
}

std::vector<llama_token> ReadTokens(const std::string& path) {
  std::vector<llama_token> tokens;
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) Die("cannot read tokens");
  for (llama_token token; std::fread(&token, sizeof(token), 1, file) == 1;) tokens.push_back(token);
  std::fclose(file);
  return tokens;
}

class Sequence {
 public:
  Sequence(const char* libraries, const char* model, const Options& options)
      : id_(Number(options, "sequence", 0)) {
    ggml_backend_load_all_from_path(libraries);
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
          if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();
    model_ = llama_model_load_from_file(model, llama_model_default_params());
    if (model_ == nullptr) Die("the model does not load");
    vocabulary_ = llama_vocab_n_tokens(llama_model_get_vocab(model_));
    llama_context_params params = llama_context_default_params();
    params.n_seq_max = static_cast<uint32_t>(Number(options, "streams", 1));
    params.n_ctx = static_cast<uint32_t>(Number(options, "context", kContext)) * params.n_seq_max;
    params.n_batch = kBatch;
    params.n_threads = params.n_threads_batch = Number(options, "threads", 1);
    params.type_k = params.type_v = static_cast<ggml_type>(Number(options, "keys", GGML_TYPE_BF16));
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    context_ = llama_init_from_model(model_, params);
    if (context_ == nullptr) Die("no context");
  }

  // Decodes tokens from `position` on, and keeps their logits if `keep`.
  void Decode(const std::vector<llama_token>& tokens, int position, bool keep) {
    for (size_t begin = 0; begin < tokens.size(); begin += kBatch) {
      const size_t count = std::min<size_t>(kBatch, tokens.size() - begin);
      llama_batch batch = llama_batch_init(static_cast<int32_t>(count), 0, 1);
      batch.n_tokens = static_cast<int32_t>(count);
      for (size_t i = 0; i < count; ++i) {
        batch.token[i] = tokens[begin + i];
        batch.pos[i] = position + static_cast<int>(begin + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = id_;
        batch.logits[i] = keep ? 1 : 0;
      }
      if (llama_decode(context_, batch) != 0) Die("decode failed");
      for (size_t i = 0; keep && i < count; ++i) {
        const float* row = llama_get_logits_ith(context_, static_cast<int32_t>(i));
        logits_.insert(logits_.end(), row, row + vocabulary_);
      }
      llama_batch_free(batch);
    }
  }
  // How many tokens the state has.
  size_t Restore(const std::string& path) {
    std::vector<llama_token> tokens(llama_n_ctx(context_));
    size_t count = 0;
    if (llama_state_seq_load_file(context_, path.c_str(), id_, tokens.data(), tokens.size(),
                                  &count) == 0) {
      std::exit(3);
    }
    return count;
  }
  void Save(const std::string& path, const std::vector<llama_token>& tokens) {
    if (llama_state_seq_save_file(context_, path.c_str(), id_, tokens.data(), tokens.size()) == 0) {
      Die("the state cannot be saved");
    }
  }
  llama_token Greedy() const {
    const auto last = logits_.end() - vocabulary_;
    return static_cast<llama_token>(std::max_element(last, logits_.end()) - last);
  }
  const std::vector<float>& logits() const { return logits_; }

 private:
  const llama_seq_id id_;
  llama_model* model_ = nullptr;
  llama_context* context_ = nullptr;
  int vocabulary_ = 0;
  std::vector<float> logits_;
};

void Run(const char* libraries, const char* model, const Options& options) {
  Sequence sequence(libraries, model, options);
  int position = Number(options, "position", 0);
  std::vector<llama_token> tokens;
  if (const std::string state = Text(options, "state"); !state.empty()) {
    position += static_cast<int>(sequence.Restore(state));
  } else {
    tokens = ReadTokens(Text(options, "tokens"));
    sequence.Decode(tokens, position, /*keep=*/false);
    position += static_cast<int>(tokens.size());
  }
  if (const std::string path = Text(options, "save"); !path.empty()) sequence.Save(path, tokens);
  const std::string suffix_path = Text(options, "suffix");
  if (suffix_path.empty()) return;
  const std::vector<llama_token> suffix = ReadTokens(suffix_path);
  sequence.Decode(suffix, position, /*keep=*/true);
  position += static_cast<int>(suffix.size());
  for (int i = Number(options, "greedy", 0); i > 0; --i) {
    const llama_token token = sequence.Greedy();
    std::printf("%d\n", token);
    sequence.Decode({token}, position++, /*keep=*/true);
  }
  std::FILE* out = std::fopen(Text(options, "logits").c_str(), "wb");
  if (out == nullptr) Die("cannot write logits");
  std::fwrite(sequence.logits().data(), sizeof(float), sequence.logits().size(), out);
  std::fclose(out);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "model" && (argc == 3 || argc == 5)) {
    const int layers = argc == 5 ? std::atoi(argv[3]) : 2,
              heads = argc == 5 ? std::atoi(argv[4]) : 4;
    if (layers < 1 || heads < 1) Die("see the top of llama_host.cc");
    ModelWriter(layers, heads).Write(argv[2]);
    return 0;
  }
  if (verb != "run" || argc < 4) Die("see the top of llama_host.cc");
  Options options;
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) Die("an argument is no key=value");
    options[word.substr(0, equals)] = word.substr(equals + 1);
  }
  Run(argv[2], argv[3], options);
  std::fflush(stdout);
  std::_Exit(0);  // the libraries' own destructors are not ours to test
}
