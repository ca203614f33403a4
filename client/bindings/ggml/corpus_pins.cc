#include "client/bindings/ggml/corpus_pins.h"

#include "absl/strings/str_format.h"
#include "store/formats/reference_cell.h"

namespace ckv::ggml {

absl::Status CorpusPins::Check(const Attached& attached, const Corpus& corpus) {
  const auto digest = DigestOfChunks(corpus.geometry, corpus.chunks);
  absl::MutexLock lock(&mu_);
  const auto [pin, is_new] = digests_.try_emplace(attached.Key(), digest);
  if (is_new || pin->second == digest) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "version %d has other chunks than this process began with, and its sequences were decoded "
      "behind those\n  start the engine again to attend the new version",
      corpus.version));
}

}  // namespace ckv::ggml
