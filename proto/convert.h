// Converts between protobuf messages and plain types. Messages are validated only here.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckv/v1/directory.pb.h"
#include "ckv/v1/types.pb.h"
#include "proto/base/latency_histogram.h"
#include "proto/corpus.h"
#include "proto/corpus_part.h"
#include "proto/extra_keys.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "proto/process_facts.h"

namespace ckv {

v1::Geometry ToProto(const Geometry& geometry);
//   InvalidArgument     ValidateGeometry refuses it, or an enum value is unknown.
absl::StatusOr<Geometry> FromProto(const v1::Geometry& message);

// Returns the extra keys of a chunk or a prompt of `token_count` tokens, sorted.
//   InvalidArgument     there are too many, or SortExtraKeys refuses them.
absl::StatusOr<ExtraKeys> FromProto(const google::protobuf::RepeatedPtrField<v1::ExtraKey>& keys,
                                    uint64_t token_count);

v1::ChunkPlacement ToProto(const PromptChunk& chunk);
v1::Corpus ToProto(const Corpus& corpus);
v1::ChunkPlacement ToProto(const ChunkPlacement& chunk);
// Removes the parent and the token hashes, which a caller of chunks does not need.
void ClearLineage(v1::ChunkPlacement& chunk);
//   InvalidArgument     ValidateCorpus refuses it.
absl::StatusOr<Corpus> FromProto(const v1::Corpus& message);
absl::StatusOr<ChunkPlacement> FromProto(const v1::ChunkPlacement& message);

v1::CorpusPart ToProto(const CorpusPart& part);
//   InvalidArgument     ValidateCorpusPart refuses it, or it has more than kPartChunksPerCallMax
//                       chunks.
absl::StatusOr<CorpusPart> FromProto(const v1::CorpusPart& message);
v1::DroppedCorpus ToProto(const DroppedCorpus& dropped);
//   InvalidArgument     ValidateDropped refuses it.
absl::StatusOr<DroppedCorpus> FromProto(const v1::DroppedCorpus& message);
v1::SeenDirectory ToProto(const SeenDirectory& seen);
SeenDirectory FromProto(const v1::SeenDirectory& message);

v1::Latency ToProto(std::string_view of, const LatencyCounts& counts);
// Adds counts beyond the last bucket to the last one.
LatencyCounts FromProto(const v1::Latency& message);

v1::Member ToProto(const Member& member);
//   InvalidArgument     the id is missing, ValidateName refuses it or a label, the role is missing,
//                       or an address is not host:port.
absl::StatusOr<Member> FromProto(const v1::Member& message);

v1::ProcessFacts ToProto(const ProcessFacts& facts);

// Both truncate long texts and make them UTF-8: a peer's description of itself is never an error.
v1::EngineFacts ToProto(const EngineFacts& facts);
EngineFacts FromProto(const v1::EngineFacts& message);

// Encodes values as little-endian bytes.
std::string Int32sToBytes(std::span<const int32_t> values);
//   InvalidArgument     not a multiple of 4 bytes, or more than `count_max` values.
absl::StatusOr<std::vector<int32_t>> Int32sFromBytes(std::string_view bytes, size_t count_max);

}  // namespace ckv
