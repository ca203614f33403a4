// Two functions for each type, to and from its message. FromProto is the only place where messages
// are validated: sizes, ranges and texts, before a value is used. The order is geometry, corpora,
// reports of holders, members, facts of processes, extra keys and arrays of integers.

#include "proto/convert.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/host_port.h"
#include "proto/base/status.h"
#include "proto/utf8.h"

namespace ckv {
namespace {

absl::StatusOr<RowDtype> DtypeFrom(v1::RowDtype dtype) {
  switch (dtype) {
    case v1::ROW_DTYPE_BF16:
      return RowDtype::kBf16;
    case v1::ROW_DTYPE_FP8_DS_MLA:
      return RowDtype::kFp8DsMla;
    default:
      return absl::InvalidArgumentError("geometry: dtype: unknown");
  }
}

absl::StatusOr<RopeStyle> StyleFrom(v1::RopeStyle style) {
  switch (style) {
    case v1::ROPE_STYLE_NONE:
      return RopeStyle::kNone;
    case v1::ROPE_STYLE_INTERLEAVED:
      return RopeStyle::kInterleaved;
    case v1::ROPE_STYLE_HALF_SPLIT:
      return RopeStyle::kHalfSplit;
    default:
      return absl::InvalidArgumentError("geometry: rope_style: unknown");
  }
}

absl::StatusOr<IndexShape> IndexFrom(const v1::IndexShape& message) {
  IndexShape index;
  index.dim = message.dim();
  index.heads = message.heads();
  if (message.dtype() < v1::INDEX_DTYPE_BF16 || message.dtype() > v1::INDEX_DTYPE_INT8)
    return absl::InvalidArgumentError("geometry: index.dtype: unknown");
  index.dtype = static_cast<IndexDtype>(message.dtype());
  index.d_rope = message.d_rope();
  CKV_ASSIGN_OR_RETURN(index.rope_style, StyleFrom(message.rope_style()));
  index.scale = message.scale();
  return index;
}

}  // namespace

v1::Geometry ToProto(const Geometry& geometry) {
  v1::Geometry message;
  message.set_model(geometry.model);
  message.set_revision(geometry.revision);
  message.set_layers(geometry.layers);
  message.set_d_qk(geometry.d_qk);
  message.set_d_v(geometry.d_v);
  message.set_d_rope(geometry.d_rope);
  message.set_dtype(geometry.dtype == RowDtype::kBf16 ? v1::ROW_DTYPE_BF16
                                                      : v1::ROW_DTYPE_FP8_DS_MLA);
  message.set_rope_style(static_cast<v1::RopeStyle>(geometry.rope.style));
  message.set_rope_theta(geometry.rope.theta);
  if (geometry.rope.yarn) {
    v1::YarnParams* yarn = message.mutable_yarn();
    yarn->set_factor(geometry.rope.yarn->factor);
    yarn->set_original_max_position(geometry.rope.yarn->original_max_position);
    yarn->set_beta_fast(geometry.rope.yarn->beta_fast);
    yarn->set_beta_slow(geometry.rope.yarn->beta_slow);
    yarn->set_mscale(geometry.rope.yarn->mscale);
    yarn->set_mscale_all_dim(geometry.rope.yarn->mscale_all_dim);
  }
  message.set_softmax_scale(geometry.softmax_scale);
  if (geometry.index) {
    v1::IndexShape* index = message.mutable_index();
    index->set_dim(geometry.index->dim);
    index->set_heads(geometry.index->heads);
    index->set_dtype(static_cast<v1::IndexDtype>(geometry.index->dtype));
    index->set_d_rope(geometry.index->d_rope);
    index->set_rope_style(static_cast<v1::RopeStyle>(geometry.index->rope_style));
    index->set_scale(geometry.index->scale);
  }
  return message;
}

absl::StatusOr<Geometry> FromProto(const v1::Geometry& message) {
  Geometry geometry;
  geometry.model = message.model();
  geometry.revision = message.revision();
  geometry.layers = message.layers();
  geometry.d_qk = message.d_qk();
  geometry.d_v = message.d_v();
  geometry.d_rope = message.d_rope();
  CKV_ASSIGN_OR_RETURN(geometry.dtype, DtypeFrom(message.dtype()));
  CKV_ASSIGN_OR_RETURN(geometry.rope.style, StyleFrom(message.rope_style()));
  geometry.rope.theta = message.rope_theta();
  if (message.has_yarn()) {
    YarnParams yarn;
    yarn.factor = message.yarn().factor();
    yarn.original_max_position = message.yarn().original_max_position();
    yarn.beta_fast = message.yarn().beta_fast();
    yarn.beta_slow = message.yarn().beta_slow();
    yarn.mscale = message.yarn().mscale();
    yarn.mscale_all_dim = message.yarn().mscale_all_dim();
    geometry.rope.yarn = yarn;
  }
  geometry.softmax_scale = message.softmax_scale();
  if (message.has_index()) {
    CKV_ASSIGN_OR_RETURN(geometry.index, IndexFrom(message.index()));
  }
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  return geometry;
}

v1::ChunkPlacement ToProto(const ChunkPlacement& chunk) {
  v1::ChunkPlacement message;
  message.set_id(std::string(chunk.id.AsBytes()));
  message.set_parent(std::string(chunk.parent().AsBytes()));
  message.set_token_count(chunk.token_count);
  message.set_position(chunk.position);
  for (const HolderId& holder : chunk.holders()) message.add_holders(holder.name);
  for (const HolderId& holder : chunk.leased()) message.add_leased(holder.name);
  message.set_token_hash_head(chunk.token_hash().head);
  message.set_token_hash_whole(chunk.token_hash().whole);
  return message;
}

void ClearLineage(v1::ChunkPlacement& chunk) {
  chunk.clear_parent();
  chunk.clear_token_hash_head();
  chunk.clear_token_hash_whole();
}

absl::StatusOr<ChunkPlacement> FromProto(const v1::ChunkPlacement& message) {
  const int holder_count = message.holders_size() + message.leased_size();
  if (holder_count > static_cast<int>(kReplicaCountMax)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("chunk: %d holders, limit %d", holder_count, kReplicaCountMax));
  }
  PlacementFacts facts;
  CKV_ASSIGN_OR_RETURN(facts.id, ChunkId::FromBytes(message.id()));
  if (!message.parent().empty()) {
    CKV_ASSIGN_OR_RETURN(facts.parent, ChunkId::FromBytes(message.parent()));
  }
  facts.token_count = message.token_count();
  facts.position = message.position();
  CKV_RETURN_IF_ERROR(ValidateNumbers(facts));
  for (const std::string& holder : message.holders()) facts.holders.push_back({holder});
  for (const std::string& holder : message.leased()) facts.leased.push_back({holder});
  facts.token_hash = {message.token_hash_head(), message.token_hash_whole()};
  return ChunkPlacement(facts);
}

v1::ChunkPlacement ToProto(const PromptChunk& chunk) {
  return ToProto(ChunkPlacement({.id = chunk.id,
                                 .parent = chunk.parent,
                                 .token_count = chunk.token_count,
                                 .position = chunk.position,
                                 .token_hash = chunk.token_hash}));
}

v1::CorpusPolicy ToProto(const CorpusPolicy& policy) {
  v1::CorpusPolicy message;
  if (policy.ttl_ms) message.set_ttl_ms(*policy.ttl_ms);
  if (policy.quota_bytes) message.set_quota_bytes(*policy.quota_bytes);
  if (policy.kept_version_count) message.set_kept_version_count(*policy.kept_version_count);
  message.set_expires_at_ms(policy.expires_at_ms);
  return message;
}

CorpusPolicy FromProto(const v1::CorpusPolicy& message) {
  CorpusPolicy policy;
  if (message.has_ttl_ms()) policy.ttl_ms = message.ttl_ms();
  if (message.has_quota_bytes()) policy.quota_bytes = message.quota_bytes();
  if (message.has_kept_version_count()) policy.kept_version_count = message.kept_version_count();
  policy.expires_at_ms = message.expires_at_ms();
  return policy;
}

v1::Corpus ToProto(const Corpus& corpus) {
  v1::Corpus message;
  message.set_name(corpus.name);
  message.set_tenant(corpus.tenant);
  *message.mutable_geometry() = ToProto(corpus.geometry);
  for (const ChunkPlacement& chunk : corpus.chunks) *message.add_chunks() = ToProto(chunk);
  message.set_version(corpus.version);
  message.set_replica_count(corpus.replica_count);
  if (corpus.policy != CorpusPolicy()) *message.mutable_policy() = ToProto(corpus.policy);
  return message;
}

absl::StatusOr<Corpus> FromProto(const v1::Corpus& message) {
  if (message.chunks_size() > static_cast<int>(kCorpusChunkCountMax)) {
    return absl::InvalidArgumentError(absl::StrFormat("corpus: %d chunks, limit %d",
                                                      message.chunks_size(), kCorpusChunkCountMax));
  }
  Corpus corpus;
  corpus.name = message.name();
  corpus.tenant = message.tenant();
  CKV_ASSIGN_OR_RETURN(corpus.geometry, FromProto(message.geometry()));
  corpus.chunks.reserve(message.chunks_size());
  MemberSharing sharing;
  for (const v1::ChunkPlacement& chunk : message.chunks()) {
    CKV_ASSIGN_OR_RETURN(ChunkPlacement plain, FromProto(chunk));
    sharing.Add(plain);
    corpus.chunks.push_back(std::move(plain));
  }
  corpus.version = message.version();
  corpus.replica_count = message.replica_count();
  corpus.policy = FromProto(message.policy());
  CKV_RETURN_IF_ERROR(ValidateCorpus(corpus));
  return corpus;
}

v1::CorpusPart ToProto(const CorpusPart& part) {
  v1::CorpusPart message;
  message.set_name(part.corpus.name);
  message.set_tenant(part.corpus.tenant);
  *message.mutable_geometry() = ToProto(part.corpus.geometry);
  message.set_version(part.corpus.version);
  message.set_replica_count(part.corpus.replica_count);
  *message.mutable_policy() = ToProto(part.corpus.policy);
  message.set_chunk_count(part.chunk_count);
  message.set_folder_id(part.folder_id);
  for (size_t i = 0; i < part.ordinals.size(); ++i) {
    v1::CorpusPart::Chunk* chunk = message.add_chunks();
    chunk->set_ordinal(part.ordinals[i]);
    *chunk->mutable_chunk() = ToProto(part.corpus.chunks[i]);
  }
  return message;
}

absl::StatusOr<CorpusPart> FromProto(const v1::CorpusPart& message) {
  if (message.chunks_size() > static_cast<int>(kPartChunksPerCallMax)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "corpus part: %d chunks, limit %d", message.chunks_size(), kPartChunksPerCallMax));
  }
  CorpusPart part;
  part.corpus.name = message.name();
  part.corpus.tenant = message.tenant();
  CKV_ASSIGN_OR_RETURN(part.corpus.geometry, FromProto(message.geometry()));
  part.corpus.version = message.version();
  part.corpus.replica_count = message.replica_count();
  part.corpus.policy = FromProto(message.policy());
  part.chunk_count = message.chunk_count();
  part.folder_id = message.folder_id();
  MemberSharing sharing;
  for (const v1::CorpusPart::Chunk& chunk : message.chunks()) {
    CKV_ASSIGN_OR_RETURN(ChunkPlacement plain, FromProto(chunk.chunk()));
    sharing.Add(plain);
    part.corpus.chunks.push_back(std::move(plain));
    part.ordinals.push_back(chunk.ordinal());
  }
  CKV_RETURN_IF_ERROR(ValidateCorpusPart(part));
  return part;
}

v1::DroppedCorpus ToProto(const DroppedCorpus& dropped) {
  v1::DroppedCorpus message;
  message.set_name(dropped.name);
  message.set_tenant(dropped.tenant);
  message.set_folder_id(dropped.folder_id);
  message.set_version(dropped.version);
  message.set_number(dropped.number);
  return message;
}

absl::StatusOr<DroppedCorpus> FromProto(const v1::DroppedCorpus& message) {
  DroppedCorpus dropped = {message.tenant(), message.name(), message.folder_id(), message.version(),
                           message.number()};
  CKV_RETURN_IF_ERROR(ValidateDropped(dropped));
  return dropped;
}

v1::SeenDirectory ToProto(const SeenDirectory& seen) {
  v1::SeenDirectory message;
  message.set_folder_id(seen.folder_id);
  message.set_number(seen.number);
  return message;
}

SeenDirectory FromProto(const v1::SeenDirectory& message) {
  return {message.folder_id(), message.number()};
}

v1::Latency ToProto(std::string_view of, const LatencyCounts& counts) {
  v1::Latency message;
  message.set_of(std::string(of));
  message.set_sum_ns(counts.sum_ns);
  size_t used = counts.counts.size();
  while (used > 0 && counts.counts[used - 1] == 0) --used;
  for (size_t i = 0; i < used; ++i) message.add_counts(counts.counts[i]);
  return message;
}

LatencyCounts FromProto(const v1::Latency& message) {
  LatencyCounts counts;
  counts.sum_ns = message.sum_ns();
  for (int i = 0; i < message.counts_size(); ++i)
    counts.counts[std::min<size_t>(i, counts.counts.size() - 1)] += message.counts(i);
  return counts;
}

v1::Member ToProto(const Member& member) {
  v1::Member message;
  message.set_id(member.id.name);
  message.set_role(member.role == MemberRole::kHolder ? v1::MEMBER_ROLE_HOLDER
                                                      : v1::MEMBER_ROLE_REQUESTER);
  message.set_control_address(member.control_address);
  message.set_epoch(member.epoch.value);
  if (member.kernel_target != KernelTargetId::kUnknown)
    message.set_kernel_target(std::string(KernelTargetName(member.kernel_target)));
  v1::FailureDomain& domain = *message.mutable_domain();
  domain.set_host(member.domain.host);
  domain.set_rack(member.domain.rack);
  domain.set_zone(member.domain.zone);
  message.set_is_draining(member.is_draining);
  return message;
}

absl::StatusOr<Member> FromProto(const v1::Member& message) {
  Member member;
  if (message.id().empty() || message.id().size() > kCorpusNameBytesMax) {
    return absl::InvalidArgumentError("member: the id must have 1 to 128 characters");
  }
  CKV_RETURN_IF_ERROR(ValidateName("member: id", message.id()));
  member.id.name = message.id();
  switch (message.role()) {
    case v1::MEMBER_ROLE_HOLDER:
      member.role = MemberRole::kHolder;
      break;
    case v1::MEMBER_ROLE_REQUESTER:
      member.role = MemberRole::kRequester;
      break;
    default:
      return absl::InvalidArgumentError("member: role: unknown");
  }
  CKV_RETURN_IF_ERROR(Annotate(HostPort::Parse(message.control_address(), /*port_min=*/1).status(),
                               "member: control_address"));
  member.control_address = message.control_address();
  member.epoch.value = message.epoch();
  member.kernel_target = KernelTargetIdOf(message.kernel_target());
  const v1::FailureDomain& domain = message.domain();
  CKV_RETURN_IF_ERROR(ValidateName("member: domain.host", domain.host()));
  CKV_RETURN_IF_ERROR(ValidateName("member: domain.rack", domain.rack()));
  CKV_RETURN_IF_ERROR(ValidateName("member: domain.zone", domain.zone()));
  member.domain = {domain.host(), domain.rack(), domain.zone()};
  member.is_draining = message.is_draining();
  return member;
}

v1::ProcessFacts ToProto(const ProcessFacts& facts) {
  v1::ProcessFacts message;
  message.set_version(facts.version);
  message.set_commit(facts.commit);
  message.set_started_ago_ms(facts.started_ago_ms);
  return message;
}

v1::EngineFacts ToProto(const EngineFacts& facts) {
  const auto cut = [](const std::string& text) {
    return Utf8Text(text, EngineFacts::kTextBytesMax);
  };
  v1::EngineFacts message;
  message.set_name(cut(facts.name));
  message.set_host(cut(facts.host));
  message.set_pid(facts.pid);
  message.set_model(cut(facts.model));
  message.set_rank(facts.rank);
  message.set_rank_count(facts.rank_count);
  message.set_version(cut(facts.version));
  message.set_started_ago_ms(facts.started_ago_ms);
  return message;
}

EngineFacts FromProto(const v1::EngineFacts& message) {
  const auto cut = [](const std::string& text) {
    return Utf8Text(text, EngineFacts::kTextBytesMax);
  };
  EngineFacts facts;
  facts.name = cut(message.name());
  facts.host = cut(message.host());
  facts.pid = message.pid();
  facts.model = cut(message.model());
  facts.rank = message.rank();
  facts.rank_count = message.rank_count();
  facts.version = cut(message.version());
  facts.started_ago_ms = message.started_ago_ms();
  return facts;
}

absl::StatusOr<ExtraKeys> FromProto(const google::protobuf::RepeatedPtrField<v1::ExtraKey>& keys,
                                    uint64_t token_count) {
  ExtraKeys taken;
  if (static_cast<size_t>(keys.size()) > kExtraKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d extra keys, limit %d", keys.size(), kExtraKeysMax));
  }
  for (const v1::ExtraKey& key : keys) {
    taken.push_back(
        {.begin = key.begin(), .token_count = key.token_count(), .digest = key.digest()});
  }
  return SortExtraKeys(std::move(taken), token_count);
}

std::string Int32sToBytes(std::span<const int32_t> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

absl::StatusOr<std::vector<int32_t>> Int32sFromBytes(std::string_view bytes, size_t count_max) {
  if (bytes.size() % sizeof(int32_t) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes are not a whole number of 32-bit values", bytes.size()));
  }
  if (bytes.size() / sizeof(int32_t) > count_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d values, limit %d", bytes.size() / sizeof(int32_t), count_max));
  }
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace ckv
