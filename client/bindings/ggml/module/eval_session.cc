#include "client/bindings/ggml/module/eval_session.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <string>
#include <utility>

#include "client/bindings/ggml/module/process.h"
#include "client/bindings/ggml/module/tensor_op.h"
#include "proto/base/log.h"
#include "proto/base/status.h"

namespace ckv::ggml {

bool EvalSession::Wants(const ggml_tensor& node) const {
  const OpVerdict verdict = JudgeOp(node, api_.type_name);
  if (verdict.verdict == Verdict::kRefused) Process::Get().NoteRefused(verdict.reason);
  if (verdict.verdict == Verdict::kTaken) Process::Get().NoteOffered();
  return verdict.verdict == Verdict::kTaken;
}

void EvalSession::See(ggml_tensor& node) {
  // One failure is one wait, not one a layer.
  if (failed_) return WriteNan(node);
  absl::Status status;
  try {
    status = Attend(node);
  } catch (const std::exception& error) {  // memory or threads that there are not
    status = absl::ResourceExhaustedError(error.what());
  }
  if (status.ok()) return;
  failed_ = true;
  WriteNan(node);
  Log().error("llama.cpp: the attention of layer {} fails: {}", OpOf(node).layer,
              std::string(status.message()));
}

// Takes no memory: that may be what is missing.
void EvalSession::WriteNan(ggml_tensor& node) const {
  std::array<float, 1024> nans;
  nans.fill(std::numeric_limits<float>::quiet_NaN());
  const size_t bytes = api_.nbytes(&node);
  for (size_t at = 0; at < bytes; at += sizeof(nans)) {
    api_.tensor_set(&node, nans.data(), at, std::min(sizeof(nans), bytes - at));
  }
}

bool EvalSession::TakeFailure() { return std::exchange(failed_, false); }

absl::Status EvalSession::Attend(ggml_tensor& node) {
  CKV_RETURN_IF_ERROR(Process::Get().settings().status());
  MlaOp op = OpOf(node);
  CopyIn(node, op);
  out_.resize(api_.nbytes(&node) / sizeof(float));
  op.out = out_.data();
  CKV_ASSIGN_OR_RETURN(const bool attended, attender_->AttendIfElsewhere(op));
  if (attended) api_.tensor_set(&node, out_.data(), 0, out_.size() * sizeof(float));
  return absl::OkStatus();
}

void EvalSession::CopyIn(const ggml_tensor& node, MlaOp& op) {
  const auto copy = [this](const ggml_tensor* tensor, std::vector<std::byte>& to) {
    to.resize(api_.nbytes(tensor));
    api_.tensor_get(tensor, to.data(), 0, to.size());
    return to.data();
  };
  op.q = copy(node.src[0], q_);
  if (node.src[3] != nullptr) op.mask = copy(node.src[3], mask_);
  // Between the streams are cells that the op does not see.
  const size_t stream_bytes = size_t{op.cell_count} * op.cell_bytes;
  cells_.resize(op.stream_count * stream_bytes);
  for (uint32_t stream = 0; stream < op.stream_count; ++stream) {
    // The last row ends with its values.
    const size_t bytes = stream_bytes - op.cell_bytes + size_t{op.d_qk} * 2;
    api_.tensor_get(node.src[1], cells_.data() + stream * stream_bytes,
                    stream * op.cell_stream_bytes, bytes);
  }
  op.cells = cells_.data();
  op.cell_stream_bytes = stream_bytes;
}

}  // namespace ckv::ggml
