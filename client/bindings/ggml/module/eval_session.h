// The callback of llama_context_params.cb_eval. After the engine's own attention, on any device, it
// attends the chunks that a context's tokens attend elsewhere.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/bindings/ggml/module/ggml_api.h"
#include "client/bindings/ggml/op_attender.h"
#include "ggml.h"

namespace ckv::ggml {

// Belongs to one context. Called by the thread that decodes. Copies each attention's queries, cells
// and mask to the host. If a token attends chunks elsewhere, attends the op's tokens again and
// copies the answer back. Otherwise the engine's own answer stays.
class EvalSession {
 public:
  EvalSession(const GgmlApi& api, std::unique_ptr<OpAttender> attender)
      : api_(api), attender_(std::move(attender)) {}

  // Returns true if the callback needs the node once it is computed.
  bool Wants(const ggml_tensor& node) const;
  // Processes a computed node. If its attention fails, writes NaN as its answer, so that no later
  // node can produce a plausible one. Writes NaN for every later node, too, until TakeFailure.
  // llama_decode continues to the end, and still returns 0.
  void See(ggml_tensor& node);
  // Returns true if an attention failed since the last call.
  bool TakeFailure();

 private:
  absl::Status Attend(ggml_tensor& node);
  void WriteNan(ggml_tensor& node) const;
  // Copies what the op reads, and points the op to the copies.
  void CopyIn(const ggml_tensor& node, MlaOp& op);

  const GgmlApi api_;
  const std::unique_ptr<OpAttender> attender_;
  bool failed_ = false;
  std::vector<std::byte> q_, cells_, mask_;
  std::vector<float> out_;
};

}  // namespace ckv::ggml
