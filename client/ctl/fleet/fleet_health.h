// Finds what is wrong with a fleet, as ckvctl status tells it: who is silent, and which chunks
// nobody has.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/fleet.h"
#include "client/ctl/fleet/ask_members.h"
#include "client/ctl/output.h"

namespace ckv::ctl {

// Chunks of a corpus that no holder has who answers, by what the corpus says of their places.
struct MissingChunks {
  std::string corpus;
  uint64_t chunk_count = 0;
  uint64_t missing_count = 0;
};
struct Coverage {
  std::vector<MissingChunks> missing;  // one for each corpus that lacks some
  uint64_t skipped_count = 0;          // corpora that were not looked at: kStatusChunkCountMax
};
// All corpora together: 110 bytes each come from the directory.
inline constexpr uint64_t kStatusChunkCountMax = 1u << 20;

// Looks at the corpora that options().tenant may see.
absl::StatusOr<Coverage> FindMissing(Fleet& fleet, const std::vector<MemberReport>& members);

// Whether a requester is of the fleet although it names another address of its directory. It is if
// it is a member there, or if its directory has the same members.
bool IsOfFleet(const Fleet& fleet, const v1::DescribeReply& requester,
               const std::vector<Member>& members);

// Unavailable if somebody is silent or chunks are missing; names them all.
absl::Status Judge(const std::vector<MemberReport>& members, const Coverage& coverage);

// The kernel target that is never far from the fastest on any of the holders, if all of them have
// one; else "".
std::string BestCommonTarget(const std::vector<MemberReport>& members);

const char* RoleName(MemberRole role);
// "holder h2 at 10.0.0.2:7401 is gone: its lease ran out 12 s ago", a line each.
std::string EndedText(const std::vector<v1::EndedLease>& ended);
Json EndedJson(const std::vector<v1::EndedLease>& ended);
std::string CoverageText(const Coverage& coverage);
Json CoverageJson(const Coverage& coverage);

}  // namespace ckv::ctl
