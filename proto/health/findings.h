// The one judge of a fleet's health.
//
//   for (const Finding& finding : JudgeFleet(facts)) Print(finding);
//
// The codes are for monitors: they keep their names. deploy/handbook/operate.md says of each what
// it means and what to do.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/health/facts.h"

namespace ckv {

// In the order in which findings are told: the first is the cause of most others.
enum class FindingCode : uint8_t {
  kDirectoryUnreachable,
  kRequesterOtherFleet,
  kRequesterUnreachable,
  kDirectoryRefusesChanges,
  kDirectoryDiskFull,
  kCorpusUnproven,
  kCorpusChunksMissing,
  kNoHolder,
  kMemberUnreachable,
  kHolderRefuses,
  kHolderUnreachedByRequester,
  kHolderLacksChunks,
  kHolderStoreFull,
  kHolderStoreFailing,
  kHolderUnreadableChunks,
  kWireMismatch,
  kRequesterWithoutDirectory,
  kNoRoom,
  kCorpusCopiesMissing,
  kMemberLost,
  kHolderReturning,
  kDirectoryLearning,
  kDirectoryOldCopy,
  kDiskLow,
  kMemoryFull,
  kDescriptorsLow,
  kBuildsMixed,
  kClockOff,
  kCorporaSkipped,
};
inline constexpr size_t kFindingCodeCount = 29;

enum class Severity : uint8_t {
  kWarning,  // all can be answered and changed, but something is not as it should be
  kBroken,   // something cannot be answered or changed
};

struct Finding {
  FindingCode code = FindingCode::kDirectoryUnreachable;
  Severity severity = Severity::kBroken;
  std::string subject;  // "holder h1", "corpus gpl", "directory 127.0.0.1:7400"
  std::string what;     // one sentence without the subject's name in front: "lacks 4 chunks ..."
  std::string remedy;   // commands, or a setting to change

  friend bool operator==(const Finding&, const Finding&) = default;
};

// "corpus-chunks-missing": stable, for monitors.
std::string_view CodeName(FindingCode code);
// "broken" or "warning".
std::string_view SeverityName(Severity severity);
// The status that a command ends with if this is the first thing that is broken. OK of a code that
// is always a warning.
absl::StatusCode StatusOf(FindingCode code);
// The meaning of a code in half a line: for help texts.
std::string_view Meaning(FindingCode code);

// Returns what is wrong: broken things first, then in the order of codes and subjects. A fleet
// without a finding is healthy. Pure: equal facts give equal findings.
std::vector<Finding> JudgeFleet(const FleetFacts& facts);

// Returns the facts as pages tell them, which anybody may read: a tenant's corpora are one entry
// without a name.
FleetFacts WithoutTenants(FleetFacts facts);

bool AnyBroken(const std::vector<Finding>& findings);
// OK without a broken finding. Otherwise the status of the first one, with the count of all.
absl::Status StatusOf(const std::vector<Finding>& findings);

// Findings of each code and severity, for metrics.
struct FindingCount {
  FindingCode code;
  Severity severity;
  uint64_t count = 0;
};
std::vector<FindingCount> CountByCode(const std::vector<Finding>& findings);

// Limits of the judgement.
// A clock that differs by more is told. A renewal may be a second late on a loaded host.
inline constexpr Duration kClockOffMax = std::chrono::seconds(5);
// A lease that ran out is told for this long if no corpus names the member.
inline constexpr Duration kLostToldFor = std::chrono::minutes(10);
// A disk with less than both is low.
inline constexpr uint64_t kDiskLowBytes = uint64_t{1} << 30;
inline constexpr double kDiskLowShare = 0.05;
// A folder with less room takes no change, or no chunk.
inline constexpr uint64_t kDirectoryFullBytes = uint64_t{4} << 10;
inline constexpr uint64_t kStoreFullBytes = uint64_t{64} << 10;
inline constexpr double kMemoryFullShare = 0.95;
inline constexpr double kNoRoomShare = 0.99;  // the same, on every holder
// Below 7/8, at which the control port refuses connections (server/listen/listener.h).
inline constexpr double kDescriptorsLowShare = 0.8;

}  // namespace ckv
