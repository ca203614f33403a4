#include "client/tools/ctl/fleet/kept_change.h"

#include <vector>

#include "client/publish/kept_parts.h"

namespace ckv::ctl {

std::string AwaitKeptBy(Fleet& fleet, const std::string& corpus,
                        std::span<const ChunkPlacement> chunks) {
  const absl::StatusOr<v1::DescribeDirectoryReply> home = fleet.DescribeDirectory();
  if (home.ok() && !home->path().empty()) return "";
  const absl::StatusOr<std::vector<Member>> members = fleet.Members();
  const absl::Status kept = members.ok()
                                ? AwaitKept(HoldersOf(chunks), *members, fleet.clock(), kInstantMax)
                                : members.status();
  return kept.ok() ? "" : NotKeptWarning(corpus, kept);
}

}  // namespace ckv::ctl
