// The C functions that libggml-ckv.so provides to programs that embed llama.cpp.
//
//   ggml_backend_reg_t reg = ggml_backend_reg_by_name("CKV");   // null: it is not loaded
//   ckv_attach_t attach = (ckv_attach_t)ggml_backend_reg_get_proc_address(reg, "ckv_attach");
//   int64_t next = 0;
//   int64_t bytes = attach("docs", "", 0, 4, NULL, 0, &next);
//   if (bytes < 0) ...                                          // the reason is on stderr
//   void* state = malloc(bytes);
//   attach("docs", "", 0, 4, state, bytes, &next);
//   llama_state_seq_set_data(context, state, bytes, sequence);
//   ... decode from position `next` on ...
//
// To load the library, set GGML_BACKEND_PATH to it before ggml_backend_load_all, or pass its path
// to ggml_backend_load; both before a context is created. A context whose layers are on the CPU
// needs flash attention and cells of bf16, and then attends references by itself. A program that
// cuts a sequence must not cut within the reference, because the answer would lack the corpus
// without an error (deploy/handbook/llama.md).
//
// Below, a context is one of llama.cpp. A reference is the one cell per layer that represents a
// corpus in its cache. An eval session is what one context with layers on a GPU uses.
//
// All functions are thread-safe, but an eval session belongs to one thread at a time.
// Errors are logged to stderr. Settings are environment variables: client/bindings/ggml/settings.h.

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// "ckv_attach". Writes the state of a sequence that attends a whole corpus, in the format of
// llama_state_seq_set_data. The state is one cell per layer: some KB for any number of tokens.
// Waits for the directory, for 10 seconds at most.
//   tenant         "" or null is the shared tenant
//   position       of the first token; if negative, the position where the corpus itself begins
//   stream_count   n_seq_max of the context, or 1 if its cache is unified (kv_unified)
//   out, size      written if the state fits, else unchanged; `out` may be null
//   next_position  the position after the last token, where the sequence continues; may be null
// Returns the bytes of the state, whether it was written or not, and sets next_position. Returns -1
// if there is no such corpus or it cannot be attached.
typedef int64_t (*ckv_attach_t)(const char* corpus, const char* tenant, int64_t position,
                                uint32_t stream_count, void* out, size_t size,
                                int64_t* next_position);

// "ckv_check". Reports whether attention uses ckv: the settings, the directory, and the attentions
// of the contexts created so far. Writes lines for people, cut to `size` and terminated by a zero.
// Each line about a problem includes what to do. Queries the directory, for 3 seconds at most.
// Returns 0 if nothing has to be done, and 1 otherwise. That ckv computed an attention does not
// mean that a corpus was attended: the counters ops_routed and ops_failed show that.
typedef int (*ckv_check_t)(char* text, size_t size);

// "ckv_counter". Returns a counter of this process by its name, or UINT64_MAX if there is no such
// name. The names are:
//   ops, ops_routed, ops_failed                  attentions of one layer: all, those that attended
//                                                a corpus, and those of either that failed
//   rows, rows_routed                            their query rows
//   sent_bytes, received_bytes                   to holders and from them
//   prefetched_bytes                                 rows added to the local row cache
typedef uint64_t (*ckv_counter_t)(const char* name);

// The functions below are for layers on a GPU, for which llama.cpp queries no other backend.
// client/bindings/ggml/ckv_eval.h uses them, and shows what else a context needs: flash attention
// enabled, cells of bf16, and the removal of a failed batch's cells.
struct ggml_tensor;
// "ckv_eval_open". Returns an eval session for one context that is created after it. While a
// process has one, the device computes no attention, and each context of the process needs its own.
// A context without one cannot be created. Returns null if a context without one already exists.
// `thread_count` is the number of threads for the context's own cells; 0 counts as 1.
typedef void* (*ckv_eval_open_t)(uint32_t thread_count);
// "ckv_eval". The callback for llama_context_params.cb_eval; its user data is the session. After
// the engine's own attention, it attends the chunks that the cache only references.
typedef bool (*ckv_eval_t)(struct ggml_tensor* node, bool ask, void* session);
// "ckv_eval_take_failure". Returns 1 if an attention failed since the last call, and 0 if none did.
// llama_decode returns 0 in both cases, and its logits are NaN after a failure. All later logits
// are NaN, too, until this is called.
typedef int (*ckv_eval_take_failure_t)(void* session);
// "ckv_eval_close". Ends the session. Free its context first.
typedef void (*ckv_eval_close_t)(void* session);

#ifdef __cplusplus
}
#endif
