// Writes and reads one corpus. PutCorpus: version, wanted copies, geometry, the list of holders'
// names, then the chunks. A chunk leaves out what follows from the one before it (ChunkBefore): its
// parent, position, length and holders have flags. TakeCorpus reads in the same order, and refuses
// anything that PutCorpus would not write.

#include "store/corpus/corpus_bytes.h"

#include <bit>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "proto/base/status.h"
#include "store/formats/geometry_json.h"
#include "store/formats/json.h"

namespace ckv {
namespace {

static_assert(std::endian::native == std::endian::little,
              "files are written in the byte order of memory");

constexpr uint8_t kParentBefore = 1, kNoParent = 2, kPositionNext = 4, kPositionZero = 8,
                  kHoldersBefore = 16, kFlagsMax = 31;
constexpr size_t kPackedChunkBytesMin = 1 + sizeof(ChunkId) + 4;
constexpr int kGeometryDepthMax = 3;

// The values that the encoding of the next chunk may refer to.
struct ChunkBefore {
  ChunkId id;
  uint64_t end = 0;  // position behind its last token
  std::vector<uint32_t> holders;

  void Set(const ChunkPlacement& chunk) {
    id = chunk.id;
    end = chunk.position + chunk.token_count;
  }
};

void PutChunk(const ChunkPlacement& chunk, const std::vector<uint32_t>& holders,
              ChunkBefore& before, std::string& to) {
  uint8_t flags = 0;
  if (chunk.parent().IsZero()) {
    flags |= kNoParent;
  } else if (chunk.parent() == before.id) {
    flags |= kParentBefore;
  }
  if (chunk.position == 0) {
    flags |= kPositionZero;
  } else if (chunk.position == before.end) {
    flags |= kPositionNext;
  }
  if (holders == before.holders) flags |= kHoldersBefore;
  PutBytes(flags, to);
  to.append(chunk.id.AsBytes());
  if ((flags & (kNoParent | kParentBefore)) == 0) to.append(chunk.parent().AsBytes());
  PutBytes(chunk.token_count, to);
  if ((flags & (kPositionNext | kPositionZero)) == 0) PutBytes(chunk.position, to);
  if ((flags & kHoldersBefore) == 0) {
    PutBytes(static_cast<uint8_t>(holders.size()), to);
    for (const uint32_t index : holders) PutBytes(index, to);
    before.holders = holders;
  }
  before.Set(chunk);
}

absl::Status NoCorpus(absl::string_view why) { return absl::DataLossError(why); }

ChunkId TakeId(ByteReader& from) {
  ChunkId id;
  const std::string_view bytes = from.TakeBytes(sizeof(id.bytes));
  if (!bytes.empty()) std::memcpy(id.bytes.data(), bytes.data(), bytes.size());
  return id;
}

absl::Status TakeChunk(ByteReader& from, const std::vector<HolderId>& names, ChunkBefore& before,
                       ChunkPlacement& chunk) {
  const auto flags = from.Take<uint8_t>();
  if (flags > kFlagsMax) return NoCorpus("a chunk with unknown flags");
  PlacementFacts facts;
  facts.id = TakeId(from);
  if ((flags & kParentBefore) != 0) {
    facts.parent = before.id;
  } else if ((flags & kNoParent) == 0) {
    facts.parent = TakeId(from);
  }
  facts.token_count = from.Take<uint32_t>();
  if ((flags & kPositionNext) != 0) {
    facts.position = before.end;
  } else if ((flags & kPositionZero) == 0) {
    facts.position = from.Take<uint64_t>();
  }
  if ((flags & kHoldersBefore) == 0) {
    const auto count = from.Take<uint8_t>();
    if (count > kReplicaCountMax) return NoCorpus("a chunk with too many holders");
    before.holders.clear();
    for (uint8_t i = 0; i < count; ++i) before.holders.push_back(from.Take<uint32_t>());
  }
  if (from.IsShort()) return NoCorpus("a corpus that ends in a chunk");
  if (const absl::Status numbers = ValidateNumbers(facts); !numbers.ok())
    return NoCorpus(numbers.message());
  facts.holders.reserve(before.holders.size());
  for (const uint32_t index : before.holders) {
    if (index >= names.size()) return NoCorpus("a chunk with a holder that is not named");
    facts.holders.push_back(names[index]);
  }
  chunk = ChunkPlacement(facts);
  before.Set(chunk);
  return absl::OkStatus();
}

absl::Status TakeGeometry(ByteReader& from, Geometry& geometry) {
  const auto json = ParseJson(from.TakeText<uint16_t>(), kGeometryDepthMax);
  if (!json.ok()) return NoCorpus("a corpus whose geometry is not JSON");
  auto decoded = DecodeGeometry(*json, "geometry.");
  if (!decoded.ok()) return NoCorpus(decoded.status().message());
  geometry = *std::move(decoded);
  return absl::OkStatus();
}

// An unset field is 0 in bytes.
void PutPolicy(const CorpusPolicy& policy, std::string& to) {
  PutBytes(policy.ttl_ms.value_or(0), to);
  PutBytes(policy.quota_bytes.value_or(0), to);
  PutBytes(static_cast<uint8_t>(policy.kept_version_count.value_or(0)), to);
  PutBytes(policy.expires_at_ms, to);
}

CorpusPolicy TakePolicy(ByteReader& from) {
  CorpusPolicy policy;
  if (const auto ttl_ms = from.Take<uint64_t>(); ttl_ms != 0) policy.ttl_ms = ttl_ms;
  if (const auto bytes = from.Take<uint64_t>(); bytes != 0) policy.quota_bytes = bytes;
  if (const auto count = from.Take<uint8_t>(); count != 0) policy.kept_version_count = count;
  policy.expires_at_ms = from.Take<uint64_t>();
  return policy;
}

}  // namespace

void PutCorpus(const Corpus& corpus, std::string& to) {
  PutBytes(corpus.version, to);
  PutBytes(static_cast<uint8_t>(corpus.replica_count), to);
  PutPolicy(corpus.policy, to);
  PutText<uint8_t>(corpus.tenant, to);
  PutText<uint8_t>(corpus.name, to);
  PutText<uint16_t>(EncodeGeometry(corpus.geometry).dump(), to);
  absl::flat_hash_map<std::string_view, uint32_t> index_of;
  std::string names;
  std::vector<std::vector<uint32_t>> holders(corpus.chunks.size());
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    for (const HolderId& holder : corpus.chunks[i].holders()) {
      const auto [place, added] =
          index_of.try_emplace(holder.name, static_cast<uint32_t>(index_of.size()));
      if (added) PutText<uint8_t>(holder.name, names);
      holders[i].push_back(place->second);
    }
  }
  PutBytes(static_cast<uint32_t>(index_of.size()), to);
  to.append(names);
  PutBytes(static_cast<uint32_t>(corpus.chunks.size()), to);
  ChunkBefore before;
  for (size_t i = 0; i < corpus.chunks.size(); ++i)
    PutChunk(corpus.chunks[i], holders[i], before, to);
}

absl::StatusOr<Corpus> TakeCorpus(ByteReader& from) {
  Corpus corpus;
  corpus.version = from.Take<uint64_t>();
  corpus.replica_count = from.Take<uint8_t>();
  corpus.policy = TakePolicy(from);
  corpus.tenant = std::string(from.TakeText<uint8_t>());
  corpus.name = std::string(from.TakeText<uint8_t>());
  CKV_RETURN_IF_ERROR(TakeGeometry(from, corpus.geometry));
  const auto name_count = from.Take<uint32_t>();
  if (name_count > from.left()) return NoCorpus("a corpus with more holders than bytes");
  std::vector<HolderId> names;
  names.reserve(name_count);
  for (uint32_t i = 0; i < name_count; ++i)
    names.push_back({std::string(from.TakeText<uint8_t>())});
  const auto chunk_count = from.Take<uint32_t>();
  if (chunk_count > from.left() / kPackedChunkBytesMin || chunk_count > kCorpusChunkCountMax)
    return NoCorpus("a corpus with more chunks than bytes");
  corpus.chunks.resize(chunk_count);
  ChunkBefore before;
  MemberSharing sharing;
  for (ChunkPlacement& chunk : corpus.chunks) {
    CKV_RETURN_IF_ERROR(TakeChunk(from, names, before, chunk));
    sharing.Add(chunk);
  }
  const absl::Status valid = ValidateCorpus(corpus);
  if (!valid.ok()) return NoCorpus(valid.message());
  return corpus;
}

}  // namespace ckv
