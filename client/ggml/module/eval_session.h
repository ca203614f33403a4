// Attends what a context's tokens attend elsewhere after the engine's own attention, wherever that
// ran: the callback of llama_context_params.cb_eval.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ggml/module/ggml_api.h"
#include "client/ggml/op_attender.h"
#include "ggml.h"

namespace ckv::ggml {

// One context's. The thread that decodes calls it. Each attention's queries, cells and mask are
// copied to the host. If a token sees a reference, the op's tokens are attended anew, and the
// answer is copied back. Otherwise the engine's own answer stays.
class EvalSession {
 public:
  EvalSession(const GgmlApi& api, std::unique_ptr<OpAttender> attender)
      : api_(api), attender_(std::move(attender)) {}

  // Whether the callback wants to see the node once it is computed.
  bool Wants(const ggml_tensor& node) const;
  // Sees the node. If its attention fails, its answer is NaN, which no later node makes plausible.
  // That of every later node is NaN, too, until TakeFailure. llama_decode goes on to the end, and
  // returns 0 all the same.
  void See(ggml_tensor& node);
  // Whether an attention failed since this was last called.
  bool TakeFailure();

 private:
  absl::Status Attend(ggml_tensor& node);
  void WriteNan(ggml_tensor& node) const;
  // Copies what the op reads, and lets it point there.
  void CopyIn(const ggml_tensor& node, MlaOp& op);

  const GgmlApi api_;
  const std::unique_ptr<OpAttender> attender_;
  bool failed_ = false;
  std::vector<std::byte> q_, cells_, mask_;
  std::vector<float> out_;
};

}  // namespace ckv::ggml
