// Goal: epochs and numbers are never assigned twice, the table of pending changes reports up to
// which number all changes are applied, and a member's change is submitted until it is durable.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/directory/tables/change_numbers.h"
#include "server/directory/tables/epoch_blocks.h"
#include "server/directory/tables/pending_changes.h"
#include "server/directory/tables/unsaved_members.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(EpochBlocks, ABlockIsReservedBeforeTheLastOneEnds) {
  EpochBlocks epochs(/*first_epoch=*/1000);
  EXPECT_TRUE(epochs.IsLow());
  EXPECT_FALSE(epochs.IsLeft());
  const uint64_t end = epochs.BeginReservation();
  EXPECT_EQ(end, 1000 + EpochBlocks::kBlockSize);
  EXPECT_EQ(epochs.BeginReservation(), 0u) << "one at a time";
  epochs.Settle(end, absl::OkStatus());
  EXPECT_FALSE(epochs.is_reserving());
  EXPECT_TRUE(epochs.IsLeft());
  EXPECT_FALSE(epochs.IsLow());
  while (epochs.IsLeft()) {
    const Epoch epoch = epochs.Assign();
    EXPECT_EQ(epochs.IsLow(), end - epoch.value < EpochBlocks::kLeftMin) << epoch.value;
  }
  EXPECT_EQ(epochs.Assign().value, end + 1) << "a disk that fails keeps no member out";
  EXPECT_EQ(epochs.highest(), end + 1);
}

TEST(EpochBlocks, AFailedReservationLeavesTheBlock) {
  EpochBlocks epochs(0);
  const uint64_t end = epochs.BeginReservation();
  epochs.Settle(end, absl::UnavailableError("EIO"));
  EXPECT_FALSE(epochs.IsLeft());
  EXPECT_EQ(epochs.reserved().message(), "EIO");
  EXPECT_EQ(epochs.BeginReservation(), end);
}

TEST(EpochBlocks, NoEpochOfAnEarlierIncarnationIsAssigned) {
  EpochBlocks epochs(1000);
  epochs.Replay(1500);
  EXPECT_FALSE(epochs.IsLeft()) << "a replayed block may be used up";
  EXPECT_EQ(epochs.highest(), 1500u);
  epochs.NotePrevious({0});
  EXPECT_FALSE(epochs.saw_earlier_incarnation());
  epochs.NotePrevious({900});
  EXPECT_TRUE(epochs.saw_earlier_incarnation());
  epochs.NotePrevious({2000});
  EXPECT_EQ(epochs.Assign().value, 2001u);
  epochs.NotePrevious({2002 + kNumberLeapMax});
  EXPECT_EQ(epochs.Assign().value, 2002u) << "no member exhausts the numbers";
}

TEST(ChangeNumbers, AStartLeavesAGapThatIsSaved) {
  ChangeNumbers numbers(/*first=*/1000);
  numbers.NoteApplied(77);
  numbers.Replay(77);
  EXPECT_EQ(numbers.last(), 1000u);
  numbers.Start(/*folder_id=*/4711, /*is_logged=*/true);
  EXPECT_EQ(numbers.first_version(), 1000u);
  EXPECT_THAT(numbers.TakeUnsaved(), ElementsAre(VersionGap{77, 1000}));
  EXPECT_THAT(numbers.TakeUnsaved(), IsEmpty());
  numbers.NoteUnsaved({77, 1000});
  EXPECT_THAT(numbers.TakeUnsaved(), ElementsAre(VersionGap{77, 1000}));
  EXPECT_EQ(numbers.Next(), 1001u);
  EXPECT_TRUE(numbers.IsInGap(78));
  EXPECT_FALSE(numbers.IsInGap(1001));
  EXPECT_EQ(numbers.LastAssigned(500), 77u);
  EXPECT_EQ(numbers.LastAssigned(1001), 1001u);
}

TEST(ChangeNumbers, LostChangesAreInAGapOrAhead) {
  ChangeNumbers numbers(1000);
  numbers.Start(4711, /*is_logged=*/false);
  EXPECT_THAT(numbers.TakeUnsaved(), IsEmpty()) << "there is no log";
  numbers.Next();
  EXPECT_FALSE(numbers.IsForgotten(4711, 1001));
  EXPECT_TRUE(numbers.IsForgotten(4711, 1002));
  EXPECT_TRUE(numbers.IsForgotten(4711, 5));
  EXPECT_FALSE(numbers.IsForgotten(4712, 5)) << "another folder's";
  numbers.Raise(1010);
  EXPECT_TRUE(numbers.IsForgotten(4711, 1010));
  EXPECT_EQ(numbers.Next(), 1011u);
  numbers.Raise(5);
  EXPECT_EQ(numbers.last(), 1011u);
}

TEST(PendingChanges, AppliedChangesEndBeforeTheFirstPendingNumber) {
  ChangeNumbers numbers(100);
  numbers.Start(4711, /*is_logged=*/true);
  PendingChanges pending;
  const auto add = [&](const char* name, uint64_t number, bool is_rebuilt = false) {
    const auto change = std::make_shared<PendingChange>();
    change->number = number;
    change->is_rebuilt = is_rebuilt;
    change->is_new = true;
    change->added_count = 3;
    pending.Add({"", name}, change);
  };
  add("a", numbers.Next());
  add("b", numbers.Next());
  add("rebuilt", 5, /*is_rebuilt=*/true);
  EXPECT_TRUE(pending.Has({"", "a"}));
  EXPECT_FALSE(pending.Has({"blue", "a"}));
  EXPECT_EQ(pending.NewCorpusCount(), 3u);
  EXPECT_EQ(pending.AddedChunkCount(), 9u);
  EXPECT_EQ(pending.Take({"", "b"})->number, 102u);
  numbers.NoteApplied(102);
  EXPECT_EQ(pending.AppliedUpTo(numbers), 0u) << "101 is pending, and none precedes it";
  EXPECT_EQ(pending.Take({"", "a"})->number, 101u);
  EXPECT_EQ(pending.AppliedUpTo(numbers), 102u);
  EXPECT_FALSE(pending.Has({"", "a"}));
}

DirectoryChange MemberAt(const std::string& address) {
  DirectoryChange change;
  change.kind = ChangeKind::kMember;
  change.member.id = {"h0"};
  change.member.control_address = address;
  return change;
}

TEST(UnsavedMembers, AChangeIsSubmittedUntilItIsDurable) {
  UnsavedMembers members;
  Instant now{1};
  members.Note(MemberAt("a:1"));
  const auto first = members.Take(now);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_THAT(members.Take(now), IsEmpty()) << "it is under way";
  for (Duration pause = UnsavedMembers::kPauseMin; pause < UnsavedMembers::kPauseMax; pause *= 2) {
    members.Settle(*first[0], /*is_durable=*/false, now);
    EXPECT_THAT(members.Take(now + pause - Duration(1)), IsEmpty());
    now = now + pause;
    EXPECT_EQ(members.Take(now), first);
  }
  members.Settle(*first[0], /*is_durable=*/true, now);
  EXPECT_TRUE(members.empty());
  EXPECT_FALSE(members.Clear());
}

TEST(UnsavedMembers, ALaterChangeTakesThePlaceOfOneThatIsUnderWay) {
  UnsavedMembers members;
  const Instant now{1};
  members.Note(MemberAt("a:1"));
  const auto first = members.Take(now);
  members.Note(MemberAt("b:1"));
  members.Settle(*first[0], /*is_durable=*/true, now);
  const auto later = members.Take(now);
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(later[0]->member.control_address, "b:1");
  EXPECT_TRUE(members.Clear()) << "it is not durable yet";
  EXPECT_FALSE(members.Clear());
}

}  // namespace
}  // namespace ckv
