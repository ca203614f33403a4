#include <array>

#include "proto/health/findings.h"

namespace ckv {
namespace {

struct CodeEntry {
  FindingCode code;
  std::string_view name;
  absl::StatusCode status;  // kOk: it is always a warning
  std::string_view meaning;
};

using enum absl::StatusCode;

constexpr std::array<CodeEntry, kFindingCodeCount> kCodes = {{
    {FindingCode::kDirectoryUnreachable, "directory-unreachable", kUnavailable,
     "the directory does not answer"},
    {FindingCode::kDirectoryNoLeader, "directory-no-leader", kUnavailable,
     "none of the fleet's directories leads"},
    {FindingCode::kRequesterOtherFleet, "requester-other-fleet", kFailedPrecondition,
     "the requester follows the directory of another fleet"},
    {FindingCode::kRequesterUnreachable, "requester-unreachable", kUnavailable,
     "the requester that was named does not answer"},
    {FindingCode::kDirectoryRefusesChanges, "directory-refuses-changes", kResourceExhausted,
     "the directory refused the last change of a corpus"},
    {FindingCode::kDirectoryDiskFull, "directory-disk-full", kResourceExhausted,
     "the directory's disk is full or read-only"},
    {FindingCode::kCorpusUnproven, "corpus-unproven", kUnavailable,
     "a corpus is not served: it is not proven to be complete"},
    {FindingCode::kCorpusChunksMissing, "corpus-chunks-missing", kUnavailable,
     "no live holder has some chunks of a corpus"},
    {FindingCode::kNoHolder, "no-holder", kUnavailable, "the fleet has no live holder"},
    {FindingCode::kMemberUnreachable, "member-unreachable", kUnavailable,
     "a member has a lease but does not answer"},
    {FindingCode::kHolderRefuses, "holder-refuses", kUnavailable,
     "a holder has no live lease and refuses every request"},
    {FindingCode::kHolderUnreachedByRequester, "holder-unreached", kUnavailable,
     "a requester cannot reach a live holder"},
    {FindingCode::kHolderLacksChunks, "holder-lacks-chunks", kDataLoss,
     "a live holder lacks chunks that are placed on it"},
    {FindingCode::kHolderStoreFull, "holder-store-full", kResourceExhausted,
     "a holder has no room for the next chunk"},
    {FindingCode::kHolderStoreFailing, "holder-store-failing", kUnavailable,
     "a holder's disk fails, is read-only, or lost its folder"},
    {FindingCode::kHolderUnreadableChunks, "holder-unreadable-chunks", kUnavailable,
     "a holder's disk fails to read some chunks"},
    {FindingCode::kWireMismatch, "wire-mismatch", kFailedPrecondition,
     "a requester and a holder have no wire version in common"},
    {FindingCode::kRequesterWithoutDirectory, "requester-without-directory", kOk,
     "a requester gets no updates from the directory"},
    {FindingCode::kNoRoom, "no-room", kResourceExhausted, "no live holder has room"},
    {FindingCode::kCorpusCopiesMissing, "corpus-copies-missing", kOk,
     "chunks of a corpus have fewer live copies than were placed"},
    {FindingCode::kMemberLost, "member-lost", kOk, "a member is gone"},
    {FindingCode::kHolderReturning, "holder-returning", kOk,
     "holders have not registered since the directory's start"},
    {FindingCode::kDirectoryLearning, "directory-learning", kOk,
     "the directory has restarted and is learning its corpora"},
    {FindingCode::kDirectoryOldCopy, "directory-old-copy", kOk,
     "the directory started from an old copy of its folder"},
    {FindingCode::kDiskLow, "disk-low", kOk, "a disk is almost full"},
    {FindingCode::kMemoryFull, "memory-full", kOk,
     "the memory of a holder without a disk is almost full"},
    {FindingCode::kDescriptorsLow, "descriptors-low", kOk,
     "a process has almost reached its limit of open files"},
    {FindingCode::kBuildsMixed, "builds-mixed", kOk, "the fleet runs more than one build"},
    {FindingCode::kClockOff, "clock-off", kOk,
     "a member's wall clock differs from the directory's"},
    {FindingCode::kCorporaSkipped, "corpora-skipped", kOk, "corpora were too large to check"},
    {FindingCode::kChunksUnderReplicated, "chunks-under-replicated", kOk,
     "chunks have fewer live copies than their corpora want"},
    {FindingCode::kCopiesStuck, "copies-stuck", kOk, "copies are wanted that cannot be made"},
}};

constexpr bool IsInOrder() {
  for (size_t i = 0; i < kCodes.size(); ++i) {
    if (kCodes[i].code != static_cast<FindingCode>(i)) return false;
  }
  return true;
}
static_assert(IsInOrder());

const CodeEntry& EntryOf(FindingCode code) { return kCodes[static_cast<size_t>(code)]; }

}  // namespace

std::string_view CodeName(FindingCode code) { return EntryOf(code).name; }

std::string_view SeverityName(Severity severity) {
  return severity == Severity::kBroken ? "broken" : "warning";
}

absl::StatusCode StatusOf(FindingCode code) { return EntryOf(code).status; }

std::string_view Meaning(FindingCode code) { return EntryOf(code).meaning; }

}  // namespace ckv
