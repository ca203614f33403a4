#include "proto/corpus_part.h"

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::Status ValidateCorpusPart(const CorpusPart& part) {
  CKV_RETURN_IF_ERROR(ValidateCorpus(part.corpus));
  if (part.corpus.version == 0) return absl::InvalidArgumentError("corpus part: no version");
  if (part.chunk_count > kCorpusChunkCountMax) {
    return absl::InvalidArgumentError(absl::StrFormat("corpus part: of %d chunks, limit %d",
                                                      part.chunk_count, kCorpusChunkCountMax));
  }
  if (part.ordinals.size() != part.corpus.chunks.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus part: %d ordinals of %d chunks", part.ordinals.size(), part.corpus.chunks.size()));
  }
  for (size_t i = 0; i < part.ordinals.size(); ++i) {
    if (part.ordinals[i] >= part.chunk_count ||
        (i > 0 && part.ordinals[i] <= part.ordinals[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrFormat("corpus part: ordinal %d, the one before it or the count of %d is wrong",
                          part.ordinals[i], part.chunk_count));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateDropped(const DroppedCorpus& dropped) {
  CKV_RETURN_IF_ERROR(ValidateName("tenant", dropped.tenant));
  CKV_RETURN_IF_ERROR(ValidateCorpusName("name", dropped.name));
  if (dropped.name.empty() || dropped.version == 0)
    return absl::InvalidArgumentError("dropped corpus: no name, or no version");
  return absl::OkStatus();
}

}  // namespace ckv
