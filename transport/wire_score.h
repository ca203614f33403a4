// Score frames: index queries over index keys (IndexShape in proto/geometry.h), and the scores of
// the best rows.
//
// A holder scores the keys of all named chunks. It keeps the best rows of each token, its
// candidates, under a random number that the requester chose. Any session of the same tenant that
// has the number may use them. The best come first; of equal scores, the
// row that is counted first. Rows are counted through the chunks, in the order of the runs. The
// requester gets scores, compares those of all holders, and decides how many candidates of each
// holder belong to the best of all. An attend then names the candidates and that count, and no rows
// (SegmentEntry::candidates).
//
//   score       request   RequestHeader
//                         ScoreEntry
//                         ChunkRun [piece_count]
//                         pad to 64
//                         q [row_count][heads][dim], bf16 or e4m3
//                         pad to 64
//                         weights f32 [row_count][heads]
//               reply     ReplyHeader
//                         for each token: count u32 | score f32 [score_count]
//   candidates  request   RequestHeader | CandidatesEntry
//               reply     ReplyHeader | score f32 [count], or row u32 [count]
//
// In a score request row_count is the number of tokens, and piece_count the number of runs. A reply
// has min(k, rows) as `count`. If that is less than score_count, the scores after it are 0.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/geometry.h"
#include "proto/index_query.h"
#include "transport/wire.h"

namespace ckv {

inline constexpr uint32_t kScoreTokenCountMax = 1024;      // tokens of one score request
inline constexpr uint32_t kScoreChunkCountMax = 1u << 17;  // chunks of one score request

// The limit of multiply-adds of one score request: tokens x heads x dim x keys. For 64 heads of 128
// values it is one token over 8 million keys.
inline constexpr uint64_t kScoreWorkMax = uint64_t{1} << 36;
// The limit of candidates of one score request, of all its tokens together.
inline constexpr uint32_t kCandidateCountMax = 1u << 21;

struct ScoreEntry {
  uint64_t candidates = 0;   // the number of the candidates, not 0; replaces older ones
  uint32_t k = 0;            // candidates to keep of each token; 1 to kIndexTopMax
  uint32_t score_count = 0;  // scores to send of each token; at most k
  IndexQueryDtype dtype = IndexQueryDtype::kFp8;
  uint8_t reserved[11] = {};  // zero
};
static_assert(sizeof(ScoreEntry) == 32 && std::is_trivially_copyable_v<ScoreEntry>);

// Chunks whose handles follow one another: handle, handle + 1, ...
struct ChunkRun {
  uint32_t handle = 0;
  uint32_t count = 0;
};
static_assert(sizeof(ChunkRun) == 8 && std::is_trivially_copyable_v<ChunkRun>);

// The parts of a score request, as offsets from the start of the slot. Saturates as LayOutAttend.
struct ScoreLayout {
  size_t runs = 0;
  size_t q = 0;
  size_t weights = 0;
  size_t total_bytes = 0;
};
ScoreLayout LayOutScore(uint32_t run_count, uint32_t token_count, const IndexShape& shape,
                        IndexQueryDtype dtype);

// A decoded score request. Its entry and runs are copies, and are consistent. Queries and weights
// point into the slot.
struct ScoreRequest {
  ScoreEntry entry;
  uint32_t token_count = 0;
  std::vector<ChunkRun> runs;
  uint32_t chunk_count = 0;        // chunks of all runs
  const std::byte* q = nullptr;    // [token_count][heads][dim]
  const float* weights = nullptr;  // [token_count][heads]
};
// Decodes a score request over a geometry that has an index. `out` keeps its capacity.
//   InvalidArgument     malformed; the lane is closed.
absl::Status DecodeScoreRequest(const RequestHeader& header, std::span<const std::byte> slot,
                                const Geometry& geometry, ScoreRequest& out);

// Returns the size of the body of a score reply.
inline uint64_t ScoreReplyBytes(uint32_t token_count, uint32_t score_count) {
  return uint64_t{token_count} * (1 + score_count) * sizeof(float);
}

enum class CandidatesPart : uint32_t { kScores = 1, kRows = 2 };

// Asks for the candidates [begin, begin + count) of a token.
struct CandidatesEntry {
  uint64_t candidates = 0;
  uint32_t token = 0;
  uint32_t begin = 0;
  uint32_t count = 0;  // 1 to kIndexTopMax
  CandidatesPart part = CandidatesPart::kScores;
  uint64_t reserved = 0;  // zero
};
static_assert(sizeof(CandidatesEntry) == 32 && std::is_trivially_copyable_v<CandidatesEntry>);

// Decodes a request for candidates. The range does not wrap.
//   InvalidArgument     malformed; the lane is closed.
absl::StatusOr<CandidatesEntry> DecodeCandidatesRequest(const RequestHeader& header,
                                                        std::span<const std::byte> slot);

}  // namespace ckv
