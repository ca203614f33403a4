#include "client/tools/reference_engine/engine.h"

#include <algorithm>
#include <utility>

#include "proto/base/status.h"

namespace ckv {
namespace {

// Tokens between two calls of the progress callback: about 0.2 s of the reference engine.
constexpr size_t kProgressTokens = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Sequence>> Engine::Prefill(std::span<const int32_t> tokens,
                                                          uint64_t position, WorkerPool& pool,
                                                          PrefillProgress progress) const {
  SequenceOptions options;
  options.position = position;
  options.pool = &pool;
  CKV_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence, Start(std::move(options)));
  for (size_t done = 0; done < tokens.size();) {
    const size_t count = std::min(kProgressTokens, tokens.size() - done);
    CKV_RETURN_IF_ERROR(sequence->Append(tokens.subspan(done, count), {}));
    done += count;
    CKV_RETURN_IF_ERROR(progress(static_cast<uint32_t>(done)));
  }
  return sequence;
}

}  // namespace ckv
