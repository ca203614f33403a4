#include "server/directory/log/change.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "store/formats/geometry_json.h"
#include "store/formats/json.h"

namespace ckv {
namespace {

constexpr uint8_t kBodyVersion = 1;
constexpr uint8_t kParentBefore = 1, kNoParent = 2, kPositionNext = 4, kPositionZero = 8,
                  kHoldersBefore = 16, kFlagsMax = 31;
constexpr size_t kChunkBytesMin = 1 + sizeof(ChunkId) + 4;
constexpr int kGeometryDepthMax = 3;

template <typename T>
void Put(T value, std::string& to) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename Length>
void PutText(std::string_view text, std::string& to) {
  Put(static_cast<Length>(text.size()), to);
  to.append(text);
}

// The values that the next chunk may be told by.
struct Before {
  ChunkId id;
  uint64_t end = 0;  // position behind its last token
  std::vector<uint32_t> holders;

  void Set(const ChunkPlacement& chunk) {
    id = chunk.id;
    end = chunk.position + chunk.token_count;
  }
};

void PutChunk(const ChunkPlacement& chunk, const std::vector<uint32_t>& holders, Before& before,
              std::string& to) {
  uint8_t flags = 0;
  if (chunk.parent.IsZero()) {
    flags |= kNoParent;
  } else if (chunk.parent == before.id) {
    flags |= kParentBefore;
  }
  if (chunk.position == 0) {
    flags |= kPositionZero;
  } else if (chunk.position == before.end) {
    flags |= kPositionNext;
  }
  if (holders == before.holders) flags |= kHoldersBefore;
  Put(flags, to);
  to.append(chunk.id.AsBytes());
  if ((flags & (kNoParent | kParentBefore)) == 0) to.append(chunk.parent.AsBytes());
  Put(chunk.token_count, to);
  if ((flags & (kPositionNext | kPositionZero)) == 0) Put(chunk.position, to);
  if ((flags & kHoldersBefore) == 0) {
    Put(static_cast<uint8_t>(holders.size()), to);
    for (const uint32_t index : holders) Put(index, to);
    before.holders = holders;
  }
  before.Set(chunk);
}

void PutCorpus(const Corpus& corpus, std::string& to) {
  Put(corpus.version, to);
  PutText<uint8_t>(corpus.tenant, to);
  PutText<uint8_t>(corpus.name, to);
  PutText<uint16_t>(EncodeGeometry(corpus.geometry).dump(), to);
  absl::flat_hash_map<std::string_view, uint32_t> index_of;
  std::string names;
  std::vector<std::vector<uint32_t>> holders(corpus.chunks.size());
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    for (const HolderId& holder : corpus.chunks[i].holders) {
      const auto [place, added] =
          index_of.try_emplace(holder.name, static_cast<uint32_t>(index_of.size()));
      if (added) PutText<uint8_t>(holder.name, names);
      holders[i].push_back(place->second);
    }
  }
  Put(static_cast<uint32_t>(index_of.size()), to);
  to.append(names);
  Put(static_cast<uint32_t>(corpus.chunks.size()), to);
  Before before;
  for (size_t i = 0; i < corpus.chunks.size(); ++i)
    PutChunk(corpus.chunks[i], holders[i], before, to);
}

// Takes values from the front of a body. After it ran short, every value is zero.
class Body {
 public:
  explicit Body(std::string_view bytes) : left_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    const std::string_view bytes = TakeBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string_view TakeBytes(size_t count) {
    if (left_.size() < count) {
      short_ = true;
      left_ = {};
      return {};
    }
    const std::string_view bytes = left_.substr(0, count);
    left_.remove_prefix(count);
    return bytes;
  }
  template <typename Length>
  std::string_view TakeText() {
    return TakeBytes(Take<Length>());
  }
  ChunkId TakeId() {
    ChunkId id;
    const std::string_view bytes = TakeBytes(sizeof(id.bytes));
    if (!bytes.empty()) std::memcpy(id.bytes.data(), bytes.data(), bytes.size());
    return id;
  }
  size_t left() const { return left_.size(); }
  // True if nothing is missing and nothing is left.
  bool IsDone() const { return !short_ && left_.empty(); }
  bool IsShort() const { return short_; }

 private:
  std::string_view left_;
  bool short_ = false;
};

absl::Status Bad(std::string what) { return absl::DataLossError(what); }

absl::Status TakeChunk(Body& body, const std::vector<HolderId>& names, Before& before,
                       ChunkPlacement& chunk) {
  const auto flags = body.Take<uint8_t>();
  if (flags > kFlagsMax) return Bad("a chunk with unknown flags");
  chunk.id = body.TakeId();
  if ((flags & kParentBefore) != 0) {
    chunk.parent = before.id;
  } else if ((flags & kNoParent) == 0) {
    chunk.parent = body.TakeId();
  }
  chunk.token_count = body.Take<uint32_t>();
  if ((flags & kPositionNext) != 0) {
    chunk.position = before.end;
  } else if ((flags & kPositionZero) == 0) {
    chunk.position = body.Take<uint64_t>();
  }
  if ((flags & kHoldersBefore) == 0) {
    const auto count = body.Take<uint8_t>();
    if (count > kReplicaCountMax) return Bad("a chunk with too many holders");
    before.holders.clear();
    for (uint8_t i = 0; i < count; ++i) before.holders.push_back(body.Take<uint32_t>());
  }
  if (body.IsShort()) return Bad("a corpus that ends in a chunk");
  chunk.holders.reserve(before.holders.size());
  for (const uint32_t index : before.holders) {
    if (index >= names.size()) return Bad("a chunk with a holder that is not named");
    chunk.holders.push_back(names[index]);
  }
  before.Set(chunk);
  return absl::OkStatus();
}

absl::Status TakeGeometry(Body& body, Geometry& geometry) {
  const auto json = ParseJson(body.TakeText<uint16_t>(), kGeometryDepthMax);
  if (!json.ok()) return Bad("a corpus whose geometry is not JSON");
  auto decoded = DecodeGeometry(*json, "geometry.");
  if (!decoded.ok()) return Bad(std::string(decoded.status().message()));
  geometry = *std::move(decoded);
  return absl::OkStatus();
}

absl::Status TakeCorpus(Body& body, DirectoryChange& change) {
  Corpus corpus;
  corpus.version = body.Take<uint64_t>();
  corpus.tenant = std::string(body.TakeText<uint8_t>());
  corpus.name = std::string(body.TakeText<uint8_t>());
  CKV_RETURN_IF_ERROR(TakeGeometry(body, corpus.geometry));
  const auto name_count = body.Take<uint32_t>();
  if (name_count > body.left()) return Bad("a corpus with more holders than bytes");
  std::vector<HolderId> names;
  names.reserve(name_count);
  for (uint32_t i = 0; i < name_count; ++i)
    names.push_back({std::string(body.TakeText<uint8_t>())});
  const auto chunk_count = body.Take<uint32_t>();
  if (chunk_count > body.left() / kChunkBytesMin || chunk_count > kCorpusChunkCountMax)
    return Bad("a corpus with more chunks than bytes");
  corpus.chunks.resize(chunk_count);
  Before before;
  for (ChunkPlacement& chunk : corpus.chunks)
    CKV_RETURN_IF_ERROR(TakeChunk(body, names, before, chunk));
  if (const absl::Status valid = ValidateCorpus(corpus); !valid.ok())
    return Bad(std::string(valid.message()));
  change.corpus = std::make_shared<const Corpus>(std::move(corpus));
  return absl::OkStatus();
}

absl::Status TakeBody(Body& body, DirectoryChange& change) {
  switch (change.kind) {
    case ChangeKind::kPublish:
      CKV_RETURN_IF_ERROR(TakeCorpus(body, change));
      break;
    case ChangeKind::kDrop:
      change.version = body.Take<uint64_t>();
      change.tenant = std::string(body.TakeText<uint8_t>());
      change.name = std::string(body.TakeText<uint8_t>());
      break;
    case ChangeKind::kEpochs:
      change.epoch_max = body.Take<uint64_t>();
      break;
    case ChangeKind::kFounded:
      change.folder_id = body.Take<uint64_t>();
      break;
    case ChangeKind::kContinues:
      change.log_number = body.Take<uint64_t>();
      change.log_bytes = body.Take<uint64_t>();
      break;
    case ChangeKind::kSnapshotBegin:
      change.folder_id = body.Take<uint64_t>();
      change.version = body.Take<uint64_t>();
      change.epoch_max = body.Take<uint64_t>();
      change.corpus_count = body.Take<uint32_t>();
      break;
    case ChangeKind::kSnapshotEnd:
      change.corpus_count = body.Take<uint32_t>();
      break;
  }
  return body.IsDone() ? absl::OkStatus() : Bad("a record of another length than its fields");
}

}  // namespace

void AppendRecord(const DirectoryChange& change, std::string& payload) {
  Put(static_cast<uint8_t>(change.kind), payload);
  Put(kBodyVersion, payload);
  Put(uint16_t{0}, payload);
  const size_t length_at = payload.size();
  Put(uint32_t{0}, payload);
  switch (change.kind) {
    case ChangeKind::kPublish:
      PutCorpus(*change.corpus, payload);
      break;
    case ChangeKind::kDrop:
      Put(change.version, payload);
      PutText<uint8_t>(change.tenant, payload);
      PutText<uint8_t>(change.name, payload);
      break;
    case ChangeKind::kEpochs:
      Put(change.epoch_max, payload);
      break;
    case ChangeKind::kFounded:
      Put(change.folder_id, payload);
      break;
    case ChangeKind::kContinues:
      Put(change.log_number, payload);
      Put(change.log_bytes, payload);
      break;
    case ChangeKind::kSnapshotBegin:
      Put(change.folder_id, payload);
      Put(change.version, payload);
      Put(change.epoch_max, payload);
      Put(change.corpus_count, payload);
      break;
    case ChangeKind::kSnapshotEnd:
      Put(change.corpus_count, payload);
      break;
  }
  const auto body_bytes = static_cast<uint32_t>(payload.size() - length_at - sizeof(uint32_t));
  std::memcpy(payload.data() + length_at, &body_bytes, sizeof(body_bytes));
}

absl::Status ReadRecords(std::string_view payload,
                         absl::FunctionRef<absl::Status(DirectoryChange)> take) {
  Body records(payload);
  while (records.left() > 0) {
    DirectoryChange change;
    const auto kind = records.Take<uint8_t>();
    const auto version = records.Take<uint8_t>();
    const auto zero = records.Take<uint16_t>();
    Body body(records.TakeText<uint32_t>());
    if (records.IsShort()) return Bad("a record that is longer than its frame");
    if (version > kBodyVersion || kind > static_cast<uint8_t>(ChangeKind::kSnapshotEnd)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("a record of kind %d, version %d: it was written by a later version of "
                          "ckv: upgrade this one",
                          kind, version));
    }
    if (version != kBodyVersion || kind == 0 || zero != 0)
      return Bad(absl::StrFormat("a record of kind %d, version %d", kind, version));
    change.kind = static_cast<ChangeKind>(kind);
    CKV_RETURN_IF_ERROR(TakeBody(body, change));
    CKV_RETURN_IF_ERROR(take(std::move(change)));
  }
  return absl::OkStatus();
}

}  // namespace ckv
