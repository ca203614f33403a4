#include "transport/wire_score.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "transport/saturating.h"

namespace ckv {
namespace {

absl::Status CheckEntry(const ScoreEntry& entry) {
  uint32_t reserved = 0;
  for (const uint8_t byte : entry.reserved) reserved |= byte;
  if (reserved != 0) return absl::InvalidArgumentError("score: reserved fields are not zero");
  if (entry.dtype != IndexQueryDtype::kBf16 && entry.dtype != IndexQueryDtype::kFp8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("score: queries of type %d", static_cast<int>(entry.dtype)));
  }
  if (entry.candidates != 0 && entry.k != 0 && entry.k <= kIndexTopMax &&
      entry.score_count <= entry.k) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("score: candidates %d, the best %d (limit %d), %d scores", entry.candidates,
                      entry.k, kIndexTopMax, entry.score_count));
}

// Copies the runs and counts their chunks.
absl::Status ReadRuns(std::span<const std::byte> bytes, ScoreRequest& out) {
  std::memcpy(out.runs.data(), bytes.data(), out.runs.size() * sizeof(ChunkRun));
  uint64_t chunks = 0;
  for (const ChunkRun& run : out.runs) {
    if (run.count == 0 || run.count > kScoreChunkCountMax || run.handle > ~run.count) {
      return absl::InvalidArgumentError(
          absl::StrFormat("score: %d chunks from handle %d", run.count, run.handle));
    }
    chunks += run.count;
  }
  if (chunks > kScoreChunkCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("score: %d chunks, limit %d", chunks, kScoreChunkCountMax));
  }
  out.chunk_count = static_cast<uint32_t>(chunks);
  return absl::OkStatus();
}

}  // namespace

ScoreLayout LayOutScore(uint32_t run_count, uint32_t token_count, const IndexShape& shape,
                        IndexQueryDtype dtype) {
  ScoreLayout layout;
  layout.runs = sizeof(RequestHeader) + sizeof(ScoreEntry);
  layout.q = SaturatingRoundUp(layout.runs + size_t{run_count} * sizeof(ChunkRun), 64);
  const size_t vectors = SaturatingMultiply(token_count, shape.heads);
  const size_t q_bytes = SaturatingMultiply(vectors, size_t{shape.dim} * ValueBytes(dtype));
  layout.weights = SaturatingRoundUp(SaturatingAdd(layout.q, q_bytes), 64);
  layout.total_bytes = SaturatingAdd(layout.weights, SaturatingMultiply(vectors, sizeof(float)));
  return layout;
}

absl::Status DecodeScoreRequest(const RequestHeader& header, std::span<const std::byte> slot,
                                const Geometry& geometry, ScoreRequest& out) {
  const size_t entries = sizeof(RequestHeader) + sizeof(ScoreEntry);
  if (header.kind != WireKind::kScore || slot.size() < entries || !geometry.index) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request of %d bytes: not a score of this model", slot.size()));
  }
  if (header.layer >= geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("score: layer %d of %d", header.layer, geometry.layers));
  }
  std::memcpy(&out.entry, slot.data() + sizeof(RequestHeader), sizeof(out.entry));
  CKV_RETURN_IF_ERROR(CheckEntry(out.entry));
  const ScoreLayout layout =
      LayOutScore(header.piece_count, header.row_count, *geometry.index, out.entry.dtype);
  if (layout.total_bytes != slot.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "score: %d tokens of %s and %d runs are %d bytes, received %d", header.row_count,
        geometry.index->ToString(), header.piece_count, layout.total_bytes, slot.size()));
  }
  out.token_count = header.row_count;
  out.runs.resize(header.piece_count);
  CKV_RETURN_IF_ERROR(ReadRuns(slot.subspan(layout.runs), out));
  CKV_CHECK(reinterpret_cast<uintptr_t>(slot.data()) % alignof(float) == 0);
  out.q = slot.data() + layout.q;
  out.weights = reinterpret_cast<const float*>(slot.data() + layout.weights);
  return absl::OkStatus();
}

absl::StatusOr<CandidatesEntry> DecodeCandidatesRequest(const RequestHeader& header,
                                                        std::span<const std::byte> slot) {
  CandidatesEntry entry;
  if (header.kind != WireKind::kCandidates || slot.size() != sizeof(header) + sizeof(entry)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("request of %d bytes: not for candidates", slot.size()));
  }
  std::memcpy(&entry, slot.data() + sizeof(header), sizeof(entry));
  if (entry.reserved != 0)
    return absl::InvalidArgumentError("candidates: reserved fields are not zero");
  if (entry.part != CandidatesPart::kScores && entry.part != CandidatesPart::kRows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("candidates: part %d", static_cast<uint32_t>(entry.part)));
  }
  if (entry.count == 0 || entry.count > kIndexTopMax || entry.begin > kIndexTopMax) {
    return absl::InvalidArgumentError(absl::StrFormat("candidates: %d from %d, limit %d",
                                                      entry.count, entry.begin, kIndexTopMax));
  }
  return entry;
}

}  // namespace ckv
