#include "client/publish/kept_parts.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/grpc/grpc_status.h"
#include "client/publish/holder_calls.h"

namespace ckv {
namespace {

absl::Status RequestKeep(const Member& holder, Clock& clock, Instant deadline) {
  const auto stub = ConnectStore(holder);
  grpc::ClientContext context;
  SetDeadline(context, clock, deadline, kKeepTimeout);
  v1::KeepPlacedReply reply;
  return HolderError(stub->KeepPlaced(&context, {}, &reply), holder, "KeepPlaced");
}

}  // namespace

std::vector<HolderId> HoldersOf(std::span<const ChunkPlacement> chunks) {
  absl::flat_hash_set<HolderId> seen;
  std::vector<HolderId> holders;
  for (const ChunkPlacement& chunk : chunks) {
    for (const HolderId& holder : chunk.holders()) {
      if (seen.insert(holder).second) holders.push_back(holder);
    }
  }
  return holders;
}

absl::Status AwaitKept(std::span<const HolderId> holders, std::span<const Member> members,
                       Clock& clock, Instant deadline) {
  deadline = std::min(deadline, clock.Now() + kKeepTimeout);
  std::vector<std::string> late;
  absl::Status first;
  size_t unasked_count = 0;  // one that hangs takes the time of those behind it
  for (const Member& member : members) {
    if (member.role != MemberRole::kHolder) continue;
    if (std::find(holders.begin(), holders.end(), member.id) == holders.end()) continue;
    if (clock.Now() >= deadline) {
      ++unasked_count;
      continue;
    }
    const absl::Status status = RequestKeep(member, clock, deadline);
    if (status.ok()) continue;
    if (late.empty()) first = status;
    late.push_back(member.id.name);
  }
  if (late.empty() && unasked_count == 0) return absl::OkStatus();
  std::string text;
  if (!late.empty()) {
    const std::string why(first.message());
    text = absl::StrFormat("these holders have not recorded it yet: %s: %s",
                           absl::StrJoin(late, ", "), why.substr(0, why.find('\n')));
  }
  if (unasked_count > 0) {
    absl::StrAppendFormat(&text, "%sholders that were not queried in time: %d",
                          text.empty() ? "" : "; ", unasked_count);
  }
  return absl::UnavailableError(text);
}

std::string NotKeptWarning(std::string_view corpus, const absl::Status& kept) {
  return absl::StrFormat(
      "corpus %s: changed, but a crash of the directory may lose the change: %s\n  holders "
      "record changes every second, and a directory without directory.path relearns only what "
      "they recorded",
      corpus, std::string(kept.message()));
}

}  // namespace ckv
