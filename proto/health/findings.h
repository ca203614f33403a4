// The one function that judges the health of a fleet.
//
//   for (const Finding& finding : JudgeFleet(facts)) Print(finding);
//
// Monitors rely on the codes, so a code never changes its name. deploy/handbook/operate.md explains
// each code and its remedy.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/health/facts.h"

namespace ckv {

// In the order of reports: earlier codes often cause later ones.
enum class FindingCode : uint8_t {
  kDirectoryUnreachable,
  kDirectoryNoLeader,
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
  kChunksUnderReplicated,
  kCopiesStuck,
};
inline constexpr size_t kFindingCodeCount = 32;

enum class Severity : uint8_t {
  kWarning,  // every query and change still works
  kBroken,   // some queries or changes fail
};

struct Finding {
  FindingCode code = FindingCode::kDirectoryUnreachable;
  Severity severity = Severity::kBroken;
  std::string subject;  // "holder h1", "corpus gpl", "directory 127.0.0.1:7400"
  std::string what;     // a sentence without its subject: "lacks 4 chunks ..."
  std::string remedy;   // commands, or a setting to change

  friend bool operator==(const Finding&, const Finding&) = default;
};

// "corpus-chunks-missing": stable, for monitors.
std::string_view CodeName(FindingCode code);
// "broken" or "warning".
std::string_view SeverityName(Severity severity);
// The status of a command if this is its first broken finding. OK if the code is always a warning.
absl::StatusCode StatusOf(FindingCode code);
// The meaning of a code in half a line, for help texts.
std::string_view Meaning(FindingCode code);

// Returns the findings: broken ones first, then by code and subject. A fleet without a finding is
// healthy. Pure: equal facts give equal findings.
std::vector<Finding> JudgeFleet(const FleetFacts& facts);

// Returns the facts for the web pages, which anyone may read. The corpora of all tenants become one
// entry without a name.
FleetFacts WithoutTenants(FleetFacts facts);

bool AnyBroken(const std::vector<Finding>& findings);
// OK if no finding is broken. Otherwise the status of the first broken one, with the total number.
absl::Status StatusOf(const std::vector<Finding>& findings);

// Findings of each code and severity, for metrics.
struct FindingCount {
  FindingCode code;
  Severity severity;
  uint64_t count = 0;
};
std::vector<FindingCount> CountByCode(const std::vector<Finding>& findings);

// Limits of the judgement.
// A clock that differs by more is a finding. A renewal may be a second late on a loaded host.
inline constexpr Duration kClockOffMax = std::chrono::seconds(5);
// How long an expired lease is a finding if no corpus names the member.
inline constexpr Duration kLostReportedFor = std::chrono::minutes(10);
// A disk is low if its free space is below both limits.
inline constexpr uint64_t kDiskLowBytes = uint64_t{1} << 30;
inline constexpr double kDiskLowShare = 0.05;
// A folder on a disk with less free space counts as full: for changes of corpora, and for chunks.
inline constexpr uint64_t kDirectoryFullBytes = uint64_t{4} << 10;
inline constexpr uint64_t kStoreFullBytes = uint64_t{64} << 10;
inline constexpr double kMemoryFullShare = 0.95;
inline constexpr double kFullShare = 0.99;  // on every holder; the finding is kNoRoom
// Below 7/8, at which the control port refuses connections (server/listen/listener.h).
inline constexpr double kDescriptorsLowShare = 0.8;

}  // namespace ckv
