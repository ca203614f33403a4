// Attends corpora in a libllama context whose layers are on a GPU, through its cb_eval callback.
//
//   ckv_llama::Eval eval;                    // before the context; libggml-ckv.so is loaded
//   if (!eval.Open(threads)) ...
//   eval.SetUp(params);                      // llama_context_params
//   llama_context* context = llama_init_from_model(model, params);
//   ... restore references (ckvctl attach, or ckv_attach) ...
//   int code = eval.Decode(context, batch);  // instead of llama_decode
//   llama_free(context);                     // before eval
//
// References, failures and settings work as on the CPU (the page llama.md of the handbook). The
// engine attends its own cells first. For tokens that see a reference, the engine's answer is then
// replaced. Tested with layers on the CPU, not on a GPU.
// Each layer's queries and cells are copied to the host, and the answer back. So keep the
// sequences' own tokens few, and put the shared ones in corpora.
//
// Needs only C++11, ckv_ggml.h, llama.h and ggml-backend.h.

#pragma once

#include <cstdint>

#include "client/bindings/ggml/ckv_ggml.h"
#include "ggml-backend.h"
#include "llama.h"

namespace ckv_llama {

// Belongs to one context, and is used by one thread at a time. It must outlive the context.
class Eval {
 public:
  Eval() = default;
  Eval(const Eval&) = delete;
  Eval& operator=(const Eval&) = delete;
  ~Eval() {
    if (session_ != nullptr) close_(session_);
  }

  // Call it once. Returns false if the library is not loaded or lacks one of the functions. Also
  // returns false if a context without a session exists, which is logged to stderr. Every context
  // of the process needs its own session, opened before the context. `threads` is the number of
  // threads that attend the context's own cells. After false, use neither SetUp nor Decode.
  bool Open(uint32_t threads) {
    ggml_backend_reg_t reg = ggml_backend_reg_by_name("CKV");
    if (reg == nullptr) return false;
    const auto open = Find<ckv_eval_open_t>(reg, "ckv_eval_open");
    eval_ = Find<ckv_eval_t>(reg, "ckv_eval");
    take_failure_ = Find<ckv_eval_take_failure_t>(reg, "ckv_eval_take_failure");
    close_ = Find<ckv_eval_close_t>(reg, "ckv_eval_close");
    if (!open || !eval_ || !take_failure_ || !close_) return false;
    session_ = open(threads);
    return session_ != nullptr;
  }

  // Sets the callback, flash attention and bf16 cells; the other parameters stay. A program's own
  // callback is replaced. Call it after Open, and change none of these afterwards.
  void SetUp(llama_context_params& params) const {
    params.cb_eval = eval_;
    params.cb_eval_user_data = session_;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.type_k = params.type_v = GGML_TYPE_BF16;
  }

  // As llama_decode, but returns -3 if an attention failed. The reason is on stderr, and ckv_check
  // says what to do. The batch's cells are then removed, and the same batch may be decoded again.
  // `pos`, `n_seq_id` and `seq_id` of the batch must not be null.
  int32_t Decode(llama_context* context, const llama_batch& batch) const {
    const int32_t code = llama_decode(context, batch);
    if (take_failure_(session_) == 0) return code;
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
      for (int32_t s = 0; s < batch.n_seq_id[i]; ++s) {
        llama_memory_seq_rm(llama_get_memory(context), batch.seq_id[i][s], batch.pos[i],
                            batch.pos[i] + 1);
      }
    }
    return -3;
  }

 private:
  template <typename Pointer>
  static Pointer Find(ggml_backend_reg_t reg, const char* name) {
    return reinterpret_cast<Pointer>(ggml_backend_reg_get_proc_address(reg, name));
  }

  void* session_ = nullptr;
  ckv_eval_t eval_ = nullptr;
  ckv_eval_take_failure_t take_failure_ = nullptr;
  ckv_eval_close_t close_ = nullptr;
};

}  // namespace ckv_llama
