// Reads documents as token ids: the lines of JSONL files, or the bytes of texts. A file whose path
// is kStdinPath is stdin, from its current position; errors and origins call it "stdin".

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/extra_keys.h"

namespace ckv::ctl {

inline constexpr std::string_view kStdinPath = "-";

// Each line is read whole into memory: 64 MiB are 8 million ids of seven digits.
inline constexpr size_t kTokenLineBytesMax = size_t{64} << 20;

// Documents, one after the other.
struct TokenDocuments {
  struct Document {
    uint32_t begin = 0;  // index of the first token
    std::string origin;  // "docs.jsonl:7", or a file
    // Sorted, counted from the document's first token. If the document is truncated, some keys may
    // be beyond its end.
    ExtraKeys extra_keys = {};
  };
  std::vector<int32_t> tokens;
  std::vector<Document> documents;

  std::span<const int32_t> of(size_t document) const;
  // Returns the keys of all documents as one sequence, sorted.
  //   InvalidArgument     one of several documents has a key that applies to a whole sequence;
  //                       names it.
  absl::StatusOr<ExtraKeys> KeysOfAll() const;
};

// Reads the lines of the files, one document each. A line is a JSON array of token ids, or an
// object with that array as "token_ids". It may have "extra_keys"
// (store/formats/extra_keys_json.h); its other keys are ignored. Takes at most `token_count_max`
// tokens (all if 0), with the last document truncated. Ids are token ids (proto/token_id.h) below
// `vocabulary`.
//   NotFound            no such file.
//   InvalidArgument     the message begins with file:line. The line has neither form, has no token
//                       or an invalid id, has more than kTokenLineBytesMax bytes, or cannot be
//                       read. Or there are too many tokens.
absl::StatusOr<TokenDocuments> ReadTokenLines(const std::vector<std::string>& paths,
                                              uint32_t vocabulary, uint32_t token_count_max);
// Allows any vocabulary.
inline constexpr uint32_t kAnyVocabulary = UINT32_MAX;

// Reads the files, one document each, one token per byte. `token_count_max` as for ReadTokenLines.
//   NotFound            no such file.
//   InvalidArgument     a file is empty, or cannot be read to its end.
absl::StatusOr<TokenDocuments> ReadTexts(const std::vector<std::string>& paths,
                                         uint32_t token_count_max);

// Returns the bytes of a file as tokens, at most `token_count_max` (all if 0).
//   NotFound            no such file.
//   InvalidArgument     the file is empty, cannot be read to its end, or has more than 2^30 bytes.
absl::StatusOr<std::vector<int32_t>> ReadTextTokens(const std::string& path,
                                                    uint32_t token_count_max);

}  // namespace ckv::ctl
