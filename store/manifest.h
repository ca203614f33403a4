// A corpus manifest as a JSON text: what `corpus load` leaves behind and a directory can read back.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/corpus.h"

namespace ckv {

inline constexpr int kManifestSchemaVersion = 1;
// 2^20 chunks take 64 + 64 hex digits each, and about 150 bytes of names, numbers and holders.
inline constexpr size_t kManifestBytesMax = size_t{512} << 20;

// One object, keys in order, so that equal corpora give equal bytes. Numbers survive exactly.
//   InvalidArgument     ValidateCorpus, or more than kManifestBytesMax.
absl::StatusOr<std::string> EncodeManifest(const Corpus& corpus);

//   FailedPrecondition  written by a later version of ckv.
//   InvalidArgument     names the field: missing, unknown, twice or of another type;
//   ValidateCorpus.
absl::StatusOr<Corpus> DecodeManifest(std::string_view json);

// Checks that the chunks chain: a chunk either starts a chain (zero parent, any position) or its
// parent stands earlier in the corpus and ends where the chunk begins.
//   InvalidArgument     names the chunk's ordinal.
absl::Status CheckChain(const Corpus& corpus);

}  // namespace ckv
