// Checks and repairs copies. CheckCopies starts one thread for each holder, which sends calls of
// limited size and time (CheckHolder, CheckSome). RepairCopies runs on the calling thread: for each
// bad copy it lets holders with whole copies push the chunk, one after another until one succeeds,
// and checks the copy again. Chunks whose whole copies disagree are left alone.

#include "client/tools/ctl/fleet/verify_run.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv::ctl {
namespace {

// Limits of one call. In its time 8 GiB of rows, or one chunk, are read from memory and from the
// device at 30 MB/s.
constexpr uint64_t kCallBytesMax = uint64_t{8} << 30;
constexpr size_t kCallIdsMax = 1024;
constexpr Duration kCallTimeout = std::chrono::minutes(10);
// A chunk of 2048 V3 tokens is 144 MB: 2.5 MB/s would still make it.
constexpr Duration kPushTimeout = std::chrono::minutes(1);

const Member* MemberOf(const std::vector<Member>& members, const std::string& name) {
  const auto found = std::find_if(members.begin(), members.end(), [&](const Member& m) {
    return m.id.name == name && m.role == MemberRole::kHolder;
  });
  return found == members.end() ? nullptr : &*found;
}

uint64_t RowBytes(const Corpus& corpus, uint32_t ordinal) {
  return corpus.chunks[ordinal].token_count * corpus.geometry.token_bytes();
}

// One call for copies [begin, end).
absl::Status CheckSome(v1::HolderService::StubInterface& stub, const Member& member,
                       const Corpus& corpus, std::span<CopyCheck> copies, Clock& clock,
                       const std::function<void(uint64_t)>& on_bytes, uint64_t& bytes_checked) {
  v1::VerifyChunksRequest request;
  *request.mutable_geometry() = ToProto(corpus.geometry);
  request.set_tenant(corpus.tenant);
  for (const CopyCheck& copy : copies)
    request.add_ids(std::string(corpus.chunks[copy.ordinal].id.AsBytes()));
  grpc::ClientContext context;
  SetDeadline(context, clock, clock.Now() + kCallTimeout, kCallTimeout);
  const auto reader = stub.VerifyChunks(&context, request);
  v1::VerifyChunksReply reply;
  size_t count = 0;
  for (; reader->Read(&reply); ++count) {
    if (count == copies.size() || reply.id() != request.ids(static_cast<int>(count))) {
      context.TryCancel();
      (void)reader->Finish();
      return absl::InternalError(
          absl::StrFormat("holder %s: it answers for another chunk", member.id.name));
    }
    CopyCheck& copy = copies[count];
    copy.verdict = reply.verdict();
    copy.why = reply.why();
    copy.rows_checksum = reply.rows_checksum();
    bytes_checked += reply.bytes_checked();
    on_bytes(RowBytes(corpus, copy.ordinal));
  }
  CKV_RETURN_IF_ERROR(HolderError(reader->Finish(), member, "VerifyChunks"));
  if (count == copies.size()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("holder %s: %d answers for %d chunks", member.id.name, count, copies.size()));
}

void CheckHolder(const Member& member, const Corpus& corpus, std::span<CopyCheck> copies,
                 Clock& clock, const std::function<void(uint64_t)>& on_bytes, HolderCheck& check) {
  const auto stub = ConnectHolder(member);
  const Instant begin = clock.Now();
  for (size_t at = 0; at < copies.size() && check.status.ok();) {
    size_t count = 0;
    for (uint64_t bytes = 0; at + count < copies.size() && count < kCallIdsMax; ++count) {
      bytes += RowBytes(corpus, copies[at + count].ordinal);
      if (count > 0 && bytes > kCallBytesMax) break;
    }
    check.status = CheckSome(*stub, member, corpus, copies.subspan(at, count), clock, on_bytes,
                             check.bytes_checked);
    at += count;
  }
  check.elapsed += clock.Now() - begin;
}

// Returns the holders with a whole copy, in the order of their names.
std::vector<std::string> WholeHolders(const HolderChecks& checks, uint32_t ordinal) {
  std::vector<std::string> names;
  for (const auto& [name, check] : checks) {
    for (const CopyCheck& copy : check.copies) {
      if (copy.ordinal == ordinal && copy.whole()) names.push_back(name);
    }
  }
  return names;
}

absl::Status Push(const Member& from, const Member& to, const Corpus& corpus, uint32_t ordinal,
                  Clock& clock) {
  v1::PushChunksRequest request;
  request.add_ids(std::string(corpus.chunks[ordinal].id.AsBytes()));
  *request.mutable_geometry() = ToProto(corpus.geometry);
  request.set_tenant(corpus.tenant);
  request.set_to_id(to.id.name);
  request.set_to_address(to.control_address);
  grpc::ClientContext context;
  SetDeadline(context, clock, clock.Now() + kPushTimeout, kPushTimeout);
  const auto stub = ConnectHolder(from);
  const auto reader = stub->PushChunks(&context, request);
  v1::PushChunksReply reply;
  while (reader->Read(&reply)) {
  }
  return HolderError(reader->Finish(), from, "PushChunks");
}

absl::Status RepairOne(const Corpus& corpus, const std::vector<Member>& members,
                       const Member& target, uint32_t ordinal, Clock& clock,
                       const HolderChecks& checks) {
  absl::Status last = absl::DataLossError("no whole copy: load the corpus again with --replace");
  for (const std::string& name : WholeHolders(checks, ordinal)) {
    const Member* from = MemberOf(members, name);
    if (from == nullptr) continue;
    last = Push(*from, target, corpus, ordinal, clock);
    if (last.ok()) return last;
  }
  return last;
}

}  // namespace

HolderChecks CheckCopies(const Corpus& corpus, const std::vector<uint32_t>& ordinals,
                         const std::vector<Member>& members, Clock& clock,
                         const std::function<void(uint64_t)>& on_bytes) {
  HolderChecks checks;
  for (const uint32_t ordinal : ordinals) {
    for (const HolderId& holder : corpus.chunks[ordinal].holders())
      checks[holder.name].copies.push_back({.ordinal = ordinal});
  }
  std::vector<std::thread> threads;
  for (auto& entry : checks) {
    const Member* member = MemberOf(members, entry.first);
    if (member == nullptr) {
      entry.second.status = absl::UnavailableError(
          absl::StrFormat("holder %s is not registered with the directory", entry.first));
      continue;
    }
    threads.emplace_back([&corpus, &clock, &on_bytes, member, check = &entry.second] {
      CheckHolder(*member, corpus, check->copies, clock, on_bytes, *check);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return checks;
}

std::vector<uint32_t> Disagreeing(const HolderChecks& checks) {
  std::map<uint32_t, uint64_t> first;
  std::vector<uint32_t> ordinals;
  for (const auto& [name, check] : checks) {
    for (const CopyCheck& copy : check.copies) {
      if (!copy.whole()) continue;
      if (first.emplace(copy.ordinal, copy.rows_checksum).first->second != copy.rows_checksum)
        ordinals.push_back(copy.ordinal);
    }
  }
  std::sort(ordinals.begin(), ordinals.end());
  ordinals.erase(std::unique(ordinals.begin(), ordinals.end()), ordinals.end());
  return ordinals;
}

void RepairCopies(const Corpus& corpus, const std::vector<Member>& members, Clock& clock,
                  const std::function<void(uint64_t)>& on_bytes, HolderChecks& checks) {
  const std::vector<uint32_t> unsure = Disagreeing(checks);
  for (auto& [name, check] : checks) {
    const Member* target = MemberOf(members, name);
    if (target == nullptr) continue;
    for (CopyCheck& copy : check.copies) {
      const bool gone =
          copy.verdict == v1::CHUNK_VERDICT_MISSING || copy.verdict == v1::CHUNK_VERDICT_DAMAGED;
      if (!gone || std::binary_search(unsure.begin(), unsure.end(), copy.ordinal)) continue;
      absl::Status status = RepairOne(corpus, members, *target, copy.ordinal, clock, checks);
      if (status.ok()) {
        HolderCheck again;
        CheckHolder(*target, corpus, {&copy, 1}, clock, on_bytes, again);
        check.bytes_checked += again.bytes_checked;
        check.elapsed += again.elapsed;
        status = again.status;
      }
      copy.repaired = status.ok() && copy.whole();
      if (!status.ok()) copy.why += "; not repaired: " + std::string(status.message());
    }
  }
}

}  // namespace ckv::ctl
