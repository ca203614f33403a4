// Two functions for each type, to and from its message. Texts of other members are cut and made
// valid UTF-8, and times are bounded, because a peer may send anything. Unknown values of a later
// build become the nearest that this build has.

#include "client/grpc/health_convert.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/convert.h"
#include "proto/utf8.h"

namespace ckv {
namespace {

constexpr size_t kTextBytesMax = 512;
// 35 years, which fit into a Duration with its nanoseconds.
constexpr int64_t kMillisecondsMax = int64_t{1} << 40;

std::string Clean(const std::string& text) {
  std::string clean = Utf8Text(text, kTextBytesMax);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return clean;
}

Duration FromMilliseconds(int64_t ms) {
  return std::chrono::milliseconds(std::clamp(ms, -kMillisecondsMax, kMillisecondsMax));
}

Duration FromMilliseconds(uint64_t ms) {
  return std::chrono::milliseconds(std::min<uint64_t>(ms, uint64_t{1} << 40));
}

int64_t CountMilliseconds(Duration span) { return span / std::chrono::milliseconds(1); }

v1::DiskSpace DiskToProto(const DiskSpace& disk) {
  v1::DiskSpace message;
  message.set_free_bytes(disk.free_bytes);
  message.set_total_bytes(disk.total_bytes);
  message.set_read_only(disk.read_only);
  return message;
}

DiskSpace DiskFromProto(const v1::DiskSpace& message) {
  return {message.free_bytes(), message.total_bytes(), message.read_only()};
}

std::vector<std::string> NamesFrom(const google::protobuf::RepeatedPtrField<std::string>& names,
                                   size_t count_max) {
  std::vector<std::string> clean;
  for (const std::string& name : names) {
    if (clean.size() == count_max) break;
    clean.push_back(Clean(name));
  }
  return clean;
}

}  // namespace

v1::MemberHealth ToProto(const MemberHealth& health) {
  v1::MemberHealth message;
  message.set_chunk_count(health.chunk_count);
  message.set_used_bytes(health.used_bytes);
  message.set_capacity_bytes(health.capacity_bytes);
  message.set_is_durable(health.is_durable);
  *message.mutable_disk() = DiskToProto(health.disk);
  message.set_fault(static_cast<v1::StoreFault>(health.fault));
  message.set_fault_text(Utf8Text(health.fault_text, kTextBytesMax));
  message.set_unreadable_count(health.unreadable_count);
  message.set_repair_pending_count(health.repair_pending_count);
  message.set_open_file_count(health.open_file_count);
  message.set_open_file_count_max(health.open_file_count_max);
  message.set_wall_clock_ms(health.wall_clock_ms);
  for (const std::string& name : health.unreached) message.add_unreached(name);
  message.set_build(health.build);
  message.set_wire_version_min(health.wire_version_min);
  message.set_wire_version_max(health.wire_version_max);
  message.set_copy_bytes_per_second(health.copy_bytes_per_second);
  message.set_is_past_elbow(health.is_past_elbow);
  for (const ChunkId& id : health.hot) message.add_hot(std::string(id.AsBytes()));
  return message;
}

MemberHealth FromProto(const v1::MemberHealth& message) {
  MemberHealth health;
  health.chunk_count = message.chunk_count();
  health.used_bytes = message.used_bytes();
  health.capacity_bytes = message.capacity_bytes();
  health.is_durable = message.is_durable();
  health.disk = DiskFromProto(message.disk());
  // A fault that this build does not know is one of the device.
  const auto fault = static_cast<size_t>(message.fault());
  health.fault = fault < kStoreFaultCount ? static_cast<StoreFault>(fault) : StoreFault::kFailing;
  health.fault_text = Clean(message.fault_text());
  health.unreadable_count = message.unreadable_count();
  health.repair_pending_count = message.repair_pending_count();
  health.open_file_count = message.open_file_count();
  health.open_file_count_max = message.open_file_count_max();
  health.wall_clock_ms = message.wall_clock_ms();
  health.unreached = NamesFrom(message.unreached(), MemberHealth::kUnreachedCountMax);
  health.build = Clean(message.build());
  health.wire_version_min = message.wire_version_min();
  health.wire_version_max = message.wire_version_max();
  health.copy_bytes_per_second = message.copy_bytes_per_second();
  health.is_past_elbow = message.is_past_elbow();
  for (const std::string& bytes : message.hot()) {
    if (health.hot.size() == MemberHealth::kHotCountMax) break;
    if (const auto id = ChunkId::FromBytes(bytes); id.ok()) health.hot.push_back(*id);
  }
  return health;
}

v1::MemberFacts ToProto(const MemberFacts& facts) {
  v1::MemberFacts message;
  v1::Member& member = *message.mutable_member();
  member.set_id(facts.name);
  member.set_role(facts.role == MemberRole::kHolder ? v1::MEMBER_ROLE_HOLDER
                                                    : v1::MEMBER_ROLE_REQUESTER);
  member.set_control_address(facts.address);
  member.set_kernel_target(facts.kernel_target);
  member.set_epoch(facts.epoch);
  message.set_has_lease(facts.has_lease);
  message.set_ran_out(facts.ran_out);
  message.set_ended_ago_ms(
      static_cast<uint64_t>(std::max<int64_t>(0, CountMilliseconds(facts.ended_ago))));
  message.set_is_silent(facts.silence == Silence::kToProbe);
  message.set_silence_why(Utf8Text(facts.silence_why, kTextBytesMax));
  if (facts.health) *message.mutable_health() = ToProto(*facts.health);
  message.set_clock_ahead_ms(CountMilliseconds(facts.clock_ahead));
  message.set_placed_count(facts.placed_count);
  message.set_lacking_count(facts.lacking_count);
  message.set_sole_count(facts.sole_count);
  message.set_is_reporting(facts.is_reporting);
  return message;
}

absl::StatusOr<MemberFacts> FromProto(const v1::MemberFacts& message) {
  CKV_ASSIGN_OR_RETURN(const Member member, FromProto(message.member()));
  MemberFacts facts;
  facts.name = member.id.name;
  facts.role = member.role;
  facts.address = member.control_address;
  facts.kernel_target = std::string(KernelTargetName(member.kernel_target));
  facts.epoch = member.epoch.value;
  facts.has_lease = message.has_lease();
  facts.ran_out = message.ran_out();
  facts.ended_ago = FromMilliseconds(message.ended_ago_ms());
  if (message.is_silent()) facts.silence = Silence::kToProbe;
  facts.silence_why = Clean(message.silence_why());
  if (message.has_health()) facts.health = FromProto(message.health());
  facts.clock_ahead = FromMilliseconds(message.clock_ahead_ms());
  facts.placed_count = message.placed_count();
  facts.lacking_count = message.lacking_count();
  facts.sole_count = message.sole_count();
  facts.is_reporting = message.is_reporting();
  return facts;
}

v1::CorpusFacts ToProto(const CorpusFacts& corpus) {
  v1::CorpusFacts message;
  message.set_name(corpus.name);
  message.set_tenant(corpus.tenant);
  message.set_chunk_count(corpus.chunk_count);
  message.set_missing_count(corpus.missing_count);
  message.set_missing_copy_count(corpus.missing_copy_count);
  for (const std::string& name : corpus.away) message.add_away(name);
  for (const std::string& name : corpus.lackers) message.add_lackers(name);
  return message;
}

CorpusFacts FromProto(const v1::CorpusFacts& message) {
  CorpusFacts corpus;
  corpus.name = Clean(message.name());
  corpus.tenant = Clean(message.tenant());
  corpus.chunk_count = message.chunk_count();
  corpus.missing_count = message.missing_count();
  corpus.missing_copy_count = message.missing_copy_count();
  corpus.away = NamesFrom(message.away(), CorpusFacts::kNamedMax);
  corpus.lackers = NamesFrom(message.lackers(), CorpusFacts::kNamedMax);
  return corpus;
}

v1::ReplicationFacts ToProto(const ReplicationFacts& facts) {
  v1::ReplicationFacts message;
  message.set_under_replicated_count(facts.under_replicated_count);
  message.set_bytes_left(facts.bytes_left);
  message.set_ms_left(static_cast<uint64_t>(std::max<int64_t>(0, CountMilliseconds(facts.left))));
  message.set_stuck_count(facts.stuck_count);
  message.set_stuck_why(Utf8Text(facts.stuck_why, kTextBytesMax));
  for (const std::string& name : facts.draining) message.add_draining(name);
  return message;
}

ReplicationFacts FromProto(const v1::ReplicationFacts& message) {
  ReplicationFacts facts;
  facts.under_replicated_count = message.under_replicated_count();
  facts.bytes_left = message.bytes_left();
  facts.left = FromMilliseconds(message.ms_left());
  facts.stuck_count = message.stuck_count();
  facts.stuck_why = Clean(message.stuck_why());
  facts.draining = NamesFrom(message.draining(), kMemberCountMax);
  return facts;
}

void AddFacts(const FleetFacts& facts, v1::DescribeDirectoryReply& reply) {
  if (facts.directory) {
    *reply.mutable_disk() = DiskToProto(facts.directory->disk);
    reply.set_learns_for_ms(static_cast<uint64_t>(
        std::max<int64_t>(0, CountMilliseconds(facts.directory->learns_for))));
  }
  for (const MemberFacts& member : facts.members) *reply.add_members() = ToProto(member);
  for (const CorpusFacts& corpus : facts.corpora) *reply.add_corpora() = ToProto(corpus);
  reply.set_skipped_corpus_count(facts.skipped_corpus_count);
  *reply.mutable_replication() = ToProto(facts.replication);
}

absl::StatusOr<FleetFacts> FactsFrom(const v1::DescribeDirectoryReply& reply) {
  FleetFacts facts;
  facts.replication = FromProto(reply.replication());
  DirectoryFacts& directory = facts.directory.emplace();
  directory.path = Clean(reply.path());
  directory.refusal = Clean(reply.refusal());
  directory.is_shared = reply.is_shared();
  directory.has_no_leader = reply.is_shared() && reply.leader().empty();
  directory.old_copy = Clean(reply.old_copy());
  directory.disk = DiskFromProto(reply.disk());
  directory.learns_for = FromMilliseconds(reply.learns_for_ms());
  directory.missing_holder_count = reply.missing_holder_count();
  directory.missing_holders = NamesFrom(reply.missing_holders(), CorpusFacts::kNamedMax);
  directory.build = BuildText(reply.process().version(), reply.process().commit());
  directory.unproven_count = reply.unproven_corpus_count();
  for (const v1::UnprovenCorpus& corpus : reply.unproven_corpora()) {
    directory.unproven.push_back({Clean(corpus.name()), Clean(corpus.tenant()),
                                  corpus.chunk_count(), corpus.missing_count(), corpus.conflict(),
                                  Clean(corpus.why())});
  }
  for (const v1::MemberFacts& message : reply.members()) {
    CKV_ASSIGN_OR_RETURN(MemberFacts member, FromProto(message));
    facts.members.push_back(std::move(member));
  }
  for (const v1::CorpusFacts& message : reply.corpora())
    facts.corpora.push_back(FromProto(message));
  facts.skipped_corpus_count = reply.skipped_corpus_count();
  return facts;
}

}  // namespace ckv
