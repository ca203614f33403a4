// Plain types for the state of the directory: corpora, their chunks, and members.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/base/shared_value.h"
#include "proto/geometry.h"
#include "proto/ids.h"
#include "proto/kernel_target.h"

namespace ckv {

inline constexpr uint32_t kCorpusNameBytesMax = 128;
inline constexpr uint32_t kCorpusChunkCountMax = 1u << 20;
inline constexpr uint32_t kChunkTokenCountMax = 1u << 20;
inline constexpr uint64_t kPositionMax = uint64_t{1} << 40;
inline constexpr uint32_t kReplicaCountMax = 8;
inline constexpr uint32_t kMemberCountMax = 4096;
// Chunk ids in one control-plane call: 34 bytes each, far below gRPC's limit of 4 MiB per message.
inline constexpr size_t kIdsPerCallMax = 4096;

// The facts of one chunk of a corpus, to make a ChunkPlacement from.
struct PlacementFacts {
  ChunkId id;
  ChunkId parent;
  uint32_t token_count = 0;
  uint64_t position = 0;
  std::vector<HolderId> holders = {};
  std::vector<HolderId> leased = {};
  TokenHash token_hash = {};
};

// One chunk of a corpus and its holders. Chunks with the same holders and leased members are
// requested together, from one of these members. So a result's bits do not depend on the member
// chosen (I2).
//
// Takes 48 bytes: a requester keeps millions. The rest is in memory that copies share.
class ChunkPlacement {
 public:
  ChunkPlacement() = default;
  // The facts have passed ValidateNumbers.
  explicit ChunkPlacement(const PlacementFacts& facts);

  ChunkId id;
  uint64_t position : 43 = 0;  // canonical position of its first token, at most kPositionMax
  // At most kChunkTokenCountMax. May be 0: an empty chunk yields the empty partial.
  uint32_t token_count : 21 = 0;

  const std::vector<HolderId>& holders() const { return facts_->members->holders; }
  // Members that fetched the chunk and also serve it while their leases are valid. The directory
  // adds them to its replies (ReplicaTable); they are not part of the published corpus.
  const std::vector<HolderId>& leased() const { return facts_->members->leased; }
  // Zero for the first chunk of a chain, and in the copy of a requester, which does not need it.
  const ChunkId& parent() const { return facts_->parent; }
  // Token hashes for prompt searches; zero if not published, and in the copy of a requester.
  const TokenHash& token_hash() const { return facts_->token_hash; }

  void set_holders(std::vector<HolderId> holders);
  void set_leased(std::vector<HolderId> leased);
  void set_parent(const ChunkId& parent);
  void set_token_hash(const TokenHash& hash);
  // Valid until this chunk is copied or changed otherwise.
  std::vector<HolderId>& mutable_holders() { return facts_.Change().members.Change().holders; }
  std::vector<HolderId>& mutable_leased() { return facts_.Change().members.Change().leased; }
  // Forgets the parent and the token hashes.
  void ClearLineage();
  // Whether both have the same holders and leased members, in the same order.
  bool HasMembersOf(const ChunkPlacement& other) const {
    return facts_->members == other.facts_->members;
  }

  friend bool operator==(const ChunkPlacement&, const ChunkPlacement&) = default;

 private:
  friend class MemberSharing;
  struct Members {
    std::vector<HolderId> holders, leased;
    friend bool operator==(const Members&, const Members&) = default;
  };
  struct Facts {
    SharedValue<Members> members;
    ChunkId parent;
    TokenHash token_hash;
    friend bool operator==(const Facts&, const Facts&) = default;
  };
  SharedValue<Facts> facts_;
};
static_assert(sizeof(ChunkPlacement) == 48);

// Checks the position and the token count, which a ChunkPlacement would not have as they are.
//   InvalidArgument     one is beyond its limit.
absl::Status ValidateNumbers(const PlacementFacts& facts);

// Makes chunks with the same members share the memory of these. Not thread-safe.
class MemberSharing {
 public:
  // It forgets what it knows when it knows so many lists of members.
  static constexpr size_t kListCountMax = size_t{1} << 16;

  MemberSharing() = default;
  MemberSharing(const MemberSharing&) = delete;
  MemberSharing& operator=(const MemberSharing&) = delete;

  void Add(ChunkPlacement& chunk);
  void AddAll(std::vector<ChunkPlacement>& chunks) {
    for (ChunkPlacement& chunk : chunks) Add(chunk);
  }

 private:
  using Members = SharedValue<ChunkPlacement::Members>;
  struct Less {
    bool operator()(const Members& a, const Members& b) const;
  };
  // By members: the facts of a chunk that has nothing else.
  std::map<Members, SharedValue<ChunkPlacement::Facts>, Less> known_;
  decltype(known_)::iterator last_ = known_.end();  // neighbours mostly have the same members
};

// A chunk that the directory finds for a prompt.
struct PromptChunk {
  ChunkId id;
  ChunkId parent;
  uint32_t token_count = 0;
  uint64_t position = 0;
  TokenHash token_hash;

  friend bool operator==(const PromptChunk&, const PromptChunk&) = default;
};

// The chunks whose head hash matches the prompt, in corpora that its tenant may read. Each chunk is
// listed once.
struct PromptChunks {
  std::vector<Geometry> models;  // the chunks' models; several only if no model was requested
  std::vector<PromptChunk> chunks;
  bool truncated = false;  // more chunks exist than the limits below admit
};

// Head hashes in one control-plane call: 1 MiB.
inline constexpr size_t kHeadsPerCallMax = size_t{1} << 17;
// Chunks in the reply, about 120 bytes each.
inline constexpr size_t kPromptChunkCountMax = 16'384;
// Chunks with the same head hash in the reply: texts that begin alike.
inline constexpr size_t kChunksPerHeadMax = 256;
inline constexpr size_t kPromptModelCountMax = 16;

// The most earlier versions of a corpus that are kept.
inline constexpr uint32_t kKeptVersionCountMax = 16;
// The longest time to live: 100 years.
inline constexpr uint64_t kTtlMsMax = uint64_t{100} * 365 * 24 * 3600 * 1000;

// The lifetime, size and history of a corpus, as its owner wants them. In a publication, an unset
// field keeps what the corpus has, and 0 ends it. In a published corpus, an unset field is none.
struct CorpusPolicy {
  // The corpus is dropped this long after its chunks last changed.
  std::optional<uint64_t> ttl_ms = {};
  // The most bytes of rows, one copy of each chunk.
  std::optional<uint64_t> quota_bytes = {};
  // The earlier versions that stay, as corpora NAME@VERSION; at most kKeptVersionCountMax. A
  // version counts as earlier only if its successor lacks some of its chunks.
  std::optional<uint32_t> kept_version_count = {};
  // When the ttl ends: wall-clock milliseconds since 1970; 0 if there is none. The directory sets
  // it.
  uint64_t expires_at_ms = 0;

  friend bool operator==(const CorpusPolicy&, const CorpusPolicy&) = default;
};

// A named, ordered list of chunks. Immutable once published; a change is a new version.
struct Corpus {
  std::string name;
  std::string tenant;  // "" is the shared tenant
  Geometry geometry;
  std::vector<ChunkPlacement> chunks;
  uint64_t version = 0;  // assigned by the directory at publication; increases
  // The wanted copies of each chunk, at most kReplicaCountMax. If 0, a publication sets the largest
  // number of holders that a chunk lists.
  uint32_t replica_count = 0;
  CorpusPolicy policy = {};

  uint64_t token_count() const;
  // The bytes of the rows of all chunks, one copy of each.
  uint64_t row_bytes() const;
  friend bool operator==(const Corpus&, const Corpus&) = default;
};

// Checks the syntax of names of corpora, tenants and members: letters, digits, '-', '_' and '.', at
// most kCorpusNameBytesMax. An empty name passes; a caller that does not allow one must check that.
//   InvalidArgument     the message begins with `field`.
absl::Status ValidateName(std::string_view field, std::string_view name);

// Returns the name of the corpus that keeps version `version` of the corpus `name`: NAME@VERSION.
std::string VersionNameOf(std::string_view name, uint64_t version);

// The parts of a name NAME@VERSION.
struct VersionName {
  std::string_view name;
  uint64_t version = 0;
};
// Returns nothing if `name` is not that of a version. The result refers to `name`.
std::optional<VersionName> ParseVersionName(std::string_view name);

// Checks the syntax of the name of a corpus: as ValidateName, or NAME@VERSION.
absl::Status ValidateCorpusName(std::string_view field, std::string_view name);

// Checks the limits of a policy.
//   InvalidArgument     the message names the field.
absl::Status ValidatePolicy(const CorpusPolicy& policy);

// Checks the bytes of a corpus's rows, one copy of each chunk, against its quota; 0 means no limit.
//   ResourceExhausted   they are more.
absl::Status CheckQuota(std::string_view corpus, uint64_t row_bytes, uint64_t quota);

// Checks name syntax, counts, geometry and every chunk's holders. No chunk may occur twice, because
// merging is not idempotent (I1).
//   InvalidArgument     the message names the field and the chunk's ordinal.
absl::Status ValidateCorpus(const Corpus& corpus);

// Returns the chunk ordinals of a call: `ordinals` unchanged, or all chunks of the corpus if
// `ordinals` is empty.
//   InvalidArgument     an ordinal is past the last chunk or occurs twice, or the corpus is empty.
absl::StatusOr<std::vector<uint32_t>> ChunksOrAll(const Corpus& corpus,
                                                  std::vector<uint32_t> ordinals);

enum class MemberRole : uint8_t { kHolder = 1, kRequester = 2 };

// The host, rack and zone that fail together with a member. Holders of one chunk should differ in
// the zone, else in the rack, else in the host. Members without a label share the unnamed one.
struct FailureDomain {
  std::string host = {};
  std::string rack = {};
  std::string zone = {};

  friend bool operator==(const FailureDomain&, const FailureDomain&) = default;
};

// Returns how far apart two members fail. It is 3 in different zones, 2 on different racks of a
// zone, 1 on different hosts of a rack, and 0 on one host.
uint32_t SeparationOf(const FailureDomain& a, const FailureDomain& b);

// A process registered under a lease.
struct Member {
  HolderId id;
  MemberRole role = MemberRole::kHolder;
  std::string control_address;  // gRPC, host:port
  Epoch epoch;                  // assigned by the directory at registration
  // The instruction set of the member's kernels (proto/kernel_target.h). Results are bit-identical
  // only within one target. kUnknown if the member reports none, or one that this build lacks.
  KernelTargetId kernel_target = KernelTargetId::kUnknown;
  FailureDomain domain = {};
  // Set by the directory: the holder is drained, so no new chunks may be placed on it.
  bool is_draining = false;

  friend bool operator==(const Member&, const Member&) = default;
};

}  // namespace ckv
