// Goal: what a folder acknowledged is read back whatever happens to the process or the disk, what
// it did not acknowledge is not half there, and nothing damaged is believed. Method: the real file
// system, with a process that dies or a disk that fails at every single call; files cut and flipped
// at every byte; missing files; files of later builds.

#include "server/directory/log/log_folder.h"

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/directory/log/frame.h"
#include "tests/server/directory/log/log_file.h"
#include "tests/store/disk/fault_file_system.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using test::SomeRecords;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Call = FaultFileSystem::Call;

struct LogFolderTest : testing::Test {
  LogFolderTest() { NewPath(); }
  void NewPath() {
    static int count = 0;
    path = test::TempPath(absl::StrCat("log", count++));
  }
  // Reads the folder. Its records after a snapshot's beginning are then in `records`.
  absl::StatusOr<std::unique_ptr<LogFolder>> Open() {
    records.clear();
    return LogFolder::Open(&files, path, [this](const DirectoryChange& change) {
      if (change.kind == ChangeKind::kSnapshotBegin) return absl::OkStatus();
      records.push_back(test::RecordOf(change));
      return absl::OkStatus();
    });
  }
  std::string Why() {
    const auto folder = Open();
    return folder.ok() ? "it opens" : folder.status().ToString();
  }
  std::string File(const std::string& name) const { return absl::StrCat(path, "/", name); }
  // Makes these the files of the folder.
  void Copy(const std::map<std::string, std::string>& contents) {
    for (const auto& entry : fs::directory_iterator(path)) fs::remove(entry);
    for (const auto& [name, bytes] : contents) test::WriteBytes(File(name), bytes);
  }
  std::map<std::string, std::string> Contents() const {
    std::map<std::string, std::string> contents;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().filename() != "LOCK")
        contents[entry.path().filename()] = test::ReadBytes(entry.path());
    }
    return contents;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, bytes] : Contents()) names.push_back(name);
    return names;
  }

  FaultFileSystem files;
  std::string path;
  std::vector<std::string> records;
};

std::vector<std::string> Prefix(const std::vector<std::string>& all, size_t count) {
  return {all.begin(), all.begin() + static_cast<ptrdiff_t>(count)};
}

TEST_F(LogFolderTest, RemembersWhatWasAppended) {
  const std::vector<std::string> all = SomeRecords();
  uint64_t id = 0;
  {
    const auto folder = *Open();
    EXPECT_TRUE(folder->replay().is_new);
    id = folder->replay().folder_id;
    for (size_t i = 0; i < 5; ++i) ASSERT_TRUE(folder->Append(all[i]).ok());
  }
  {
    const auto folder = *Open();
    EXPECT_FALSE(folder->replay().is_new);
    EXPECT_EQ(folder->replay().folder_id, id);
    EXPECT_EQ(folder->replay().record_count, 5u);
    EXPECT_EQ(folder->log_bytes(), fs::file_size(File("log.1")));
    EXPECT_EQ(records, Prefix(all, 5));
    // Several records of one frame.
    ASSERT_TRUE(folder->Append(all[5] + all[6]).ok());
    ASSERT_TRUE(folder->BeginLog().ok());
    ASSERT_TRUE(folder->Append(all[7]).ok());
  }
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(records, Prefix(all, 8));
  EXPECT_THAT(Names(), testing::ElementsAre("FORMAT", "log.1", "log.2"));
}

TEST_F(LogFolderTest, ASnapshotReplacesWhatWasBefore) {
  const std::vector<std::string> all = SomeRecords();
  DirectoryImage image;
  image.version = 77;
  image.epoch_max = 88;
  for (uint32_t i = 0; i < 3; ++i)
    image.corpora.push_back(test::RandomCorpus(absl::StrCat("s", i), 70 + i, 20'000 * i, i));
  uint64_t id = 0;
  {
    const auto folder = *Open();
    id = folder->replay().folder_id;
    ASSERT_TRUE(folder->Append(all[0]).ok());
    ASSERT_TRUE(folder->BeginLog().ok());
    ASSERT_TRUE(folder->Append(all[1]).ok());  // while the snapshot is written
    ASSERT_TRUE(folder->WriteSnapshot(2, image).ok());
    EXPECT_THAT(Names(), testing::ElementsAre("FORMAT", "log.2", "snapshot.2"));
    EXPECT_EQ(folder->snapshot_bytes(), fs::file_size(File("snapshot.2")));
    EXPECT_EQ(folder->log_bytes(), fs::file_size(File("log.2")));
    ASSERT_TRUE(folder->Append(all[2]).ok());
  }
  EXPECT_GT(fs::file_size(File("snapshot.2")), LogFolder::kSnapshotFrameBytes) << "two frames";
  std::vector<std::string> due;
  for (const auto& corpus : image.corpora) due.push_back(test::RecordOf(test::PublishOf(corpus)));
  due.insert(due.end(), {all[1], all[2]});
  const auto folder = Open();
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(records, due);
  EXPECT_EQ((*folder)->replay().folder_id, id);
  EXPECT_EQ((*folder)->snapshot_bytes(), fs::file_size(File("snapshot.2")));
}

TEST_F(LogFolderTest, ReportsHowFarItHasRead) {
  const std::vector<std::string> all = SomeRecords();
  {
    const auto folder = *Open();
    DirectoryImage image;
    for (uint32_t i = 0; i < 40; ++i)
      image.corpora.push_back(test::RandomCorpus(absl::StrCat("s", i), 70 + i, 2'000, i));
    ASSERT_TRUE(folder->BeginLog().ok() && folder->WriteSnapshot(2, image).ok());
    ASSERT_TRUE(folder->Append(all[0]).ok() && folder->BeginLog().ok());
    ASSERT_TRUE(folder->Append(all[1]).ok());
  }
  ReplayProgress progress;
  EXPECT_EQ(progress.percent(), 0);
  std::vector<int> reported;
  const auto folder = LogFolder::Open(
      &files, path,
      [&](const DirectoryChange&) {
        reported.push_back(progress.percent());
        return absl::OkStatus();
      },
      &progress);
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
  EXPECT_EQ(reported.front(), 0);
  EXPECT_GE(reported[20], 30);
  EXPECT_LE(reported[20], 60);
  EXPECT_GE(reported.back(), 95);
  EXPECT_LE(progress.percent(), 100);
  EXPECT_GE(progress.percent(), 98) << "headers and first frames are not counted";
  EXPECT_EQ(progress.record_count.load(), (*folder)->replay().record_count);
}

TEST_F(LogFolderTest, EveryPrefixOfALogOpensToAPrefixOfItsChanges) {
  const std::vector<std::string> all = SomeRecords();
  std::vector<uint64_t> ends;
  {
    const auto folder = *Open();
    ends.push_back(folder->log_bytes());
    for (const std::string& record : all) {
      ASSERT_TRUE(folder->Append(record).ok());
      ends.push_back(folder->log_bytes());
    }
  }
  const std::string whole = Contents()["log.1"];
  size_t count = 0;
  // A log has its name only once its header and first frame are durable.
  for (uint64_t cut = ends[0]; cut <= ends.back(); ++cut) {
    if (cut == ends[count + 1]) ++count;
    // With a sanitizer, every seventh cut, and those where a frame ends.
    if (kSanitized && cut % 7 != 0 && cut != ends[count]) continue;
    fs::remove(File("log.1"));
    test::WriteBytes(File("log.1"), whole.substr(0, cut));
    auto folder = Open();
    ASSERT_TRUE(folder.ok()) << cut << ": " << folder.status();
    ASSERT_EQ(records, Prefix(all, count)) << cut;
    ASSERT_EQ((*folder)->replay().cut.empty(), cut == ends[count]);
    ASSERT_EQ(fs::file_size(File("log.1")), ends[count]) << "the rest is gone";
    if (cut % 7 != 0 || count == all.size()) continue;
    // The log continues where it was cut.
    ASSERT_TRUE((*folder)->Append(all[count]).ok());
    folder->reset();
    ASSERT_TRUE(Open().ok());
    ASSERT_EQ(records, Prefix(all, count + 1));
  }
  EXPECT_EQ(count, all.size());
}

TEST_F(LogFolderTest, EveryFlippedByteOfEveryFileIsFound) {
  const std::vector<std::string> all = SomeRecords(4);
  {
    const auto folder = *Open();
    DirectoryImage image;
    image.corpora.push_back(test::RandomCorpus("s", 1, 30, 1));
    ASSERT_TRUE(folder->BeginLog().ok() && folder->WriteSnapshot(2, image).ok());
    ASSERT_TRUE(folder->Append(all[0]).ok() && folder->Append(all[1]).ok());
    ASSERT_TRUE(folder->BeginLog().ok());
    ASSERT_TRUE(folder->Append(all[2]).ok());
  }
  const std::map<std::string, std::string> whole = Contents();
  std::mt19937 random(3);
  for (const auto& [name, bytes] : whole) {
    for (size_t at = 0; at < bytes.size(); ++at) {
      auto contents = whole;
      contents[name][at] = static_cast<char>(bytes[at] ^ (1 + random() % 255));
      Copy(contents);
      const std::string why = Why();
      ASSERT_THAT(why, Not(HasSubstr("it opens"))) << name << " " << at;
      if (name == "FORMAT") continue;
      // The file, and a byte that is at most the flipped one: that of its frame.
      ASSERT_THAT(why, AllOf(HasSubstr(File(name)), HasSubstr("restore the folder")));
      const size_t reported = std::stoul(why.substr(why.find("at byte ") + 8));
      ASSERT_LE(reported, at) << why;
      ASSERT_EQ(Contents(), contents) << "a refusal changes nothing";
    }
  }
}

TEST_F(LogFolderTest, ATailThatIsNotTheLastIsDamage) {
  const std::vector<std::string> all = SomeRecords();
  {
    const auto folder = *Open();
    ASSERT_TRUE(folder->Append(all[0]).ok() && folder->BeginLog().ok());
    ASSERT_TRUE(folder->Append(all[1]).ok() && folder->BeginLog().ok());
  }
  auto contents = Contents();
  contents["log.1"].pop_back();
  Copy(contents);
  EXPECT_THAT(Why(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("log.1 has"), HasSubstr("and had")));
}

TEST_F(LogFolderTest, NamesMissingFiles) {
  {
    const auto folder = *Open();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(folder->BeginLog().ok());
    ASSERT_TRUE(folder->WriteSnapshot(3, {}).ok());
  }
  const std::map<std::string, std::string> whole = Contents();
  EXPECT_THAT(Names(), testing::ElementsAre("FORMAT", "log.3", "log.4", "snapshot.3"));
  for (const auto& [missing, reported] :
       {std::pair{"log.3", "log.3 is missing"}, std::pair{"snapshot.3", "log.1 is missing"}}) {
    auto contents = whole;
    contents.erase(missing);
    Copy(contents);
    EXPECT_THAT(Why(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr(reported), HasSubstr("backup")));
  }
  auto contents = whole;
  contents["snapshot.3"].resize(contents["snapshot.3"].size() / 2);
  Copy(contents);
  EXPECT_THAT(Why(), AllOf(HasSubstr("DATA_LOSS"), HasSubstr("ends too early")));
  contents = whole;
  std::swap(contents["log.3"], contents["log.4"]);
  Copy(contents);
  EXPECT_THAT(Why(), HasSubstr("its header is that of file 4"));
}

TEST_F(LogFolderTest, ALaterBuildsFilesAreRefusedWithTheReason) {
  {
    const auto folder = *Open();
    ASSERT_TRUE(folder->Append(SomeRecords()[0]).ok());
  }
  const std::map<std::string, std::string> whole = Contents();
  auto contents = whole;
  contents["FORMAT"] = "ckv directory folder 2\n";
  Copy(contents);
  EXPECT_THAT(Why(), AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("its format is 2"),
                           HasSubstr("upgrade this one")));
  // A record of the next version, in a whole frame.
  std::string record = test::RecordOf(test::EpochsTo(9));
  record[1] = 2;
  Copy(whole);
  {
    const auto folder = *Open();
    ASSERT_TRUE(folder->Append(record).ok());
  }
  EXPECT_THAT(Why(), AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("log.1, byte"),
                           HasSubstr("later version of ckv")));
}

// Uses a folder as these tests do: appends, a new log, a snapshot, and appends again.
struct Story {
  std::vector<std::string> all = SomeRecords();
  std::vector<std::shared_ptr<const Corpus>> corpora = {test::RandomCorpus("s", 1, 30, 1)};

  struct Played {
    std::vector<std::string> acknowledged;
    std::string tried;  // the change that was not acknowledged
    bool is_done = false;
  };
  // Runs until something fails.
  Played Play(LogFolder& folder) const {
    Played played;
    const auto append = [&](size_t i) {
      played.tried = all[i];
      if (!folder.Append(all[i]).ok()) return false;
      played.acknowledged.push_back(std::exchange(played.tried, ""));
      return true;
    };
    if (!append(0) || !append(1) || !folder.BeginLog().ok() || !append(2)) return played;
    DirectoryImage image;
    image.corpora = corpora;
    if (!folder.WriteSnapshot(2, image).ok()) return played;
    played.acknowledged = AfterSnapshot();
    played.is_done = append(3);
    return played;
  }
  // The snapshot's contents differ from the log's, so that a test sees which one was read.
  std::vector<std::string> AfterSnapshot() const {
    return {test::RecordOf(test::PublishOf(corpora[0])), all[2]};
  }
};

TEST_F(LogFolderTest, AProcessThatDiesAtAnyCallLosesNothing) {
  const Story story;
  bool done = false;
  for (int death = 1; !done; ++death) {
    NewPath();
    int calls = 0;
    files.set_hook([&](Call, const std::string&) {
      return ++calls < death ? absl::OkStatus() : absl::UnavailableError("dead");
    });
    Story::Played played;
    if (auto folder = Open(); folder.ok()) played = story.Play(**folder);
    done = played.is_done;
    files.set_hook({});
    auto folder = Open();
    ASSERT_TRUE(folder.ok()) << death << ": " << folder.status();
    // A change may be there that was durable at the death but unacknowledged.
    auto one_more = played.acknowledged;
    if (!played.tried.empty()) one_more.push_back(played.tried);
    EXPECT_THAT(records, testing::AnyOf(played.acknowledged, one_more, story.AfterSnapshot()))
        << death;
    // The log continues.
    ASSERT_TRUE((*folder)->Append(story.all[5]).ok());
    auto due = records;
    due.push_back(story.all[5]);
    folder->reset();
    ASSERT_TRUE(Open().ok());
    ASSERT_EQ(records, due);
  }
}

TEST_F(LogFolderTest, AFullDiskRefusesAndForgetsNothing) {
  const std::vector<std::string> all = SomeRecords();
  for (const Call full : {Call::kWrite, Call::kSync, Call::kCreate, Call::kResize}) {
    NewPath();
    auto folder = *Open();
    ASSERT_TRUE(folder->Append(all[0]).ok());
    files.set_hook([&](Call call, const std::string&) {
      // A write that fails may have written a part; it is taken back.
      return call == full || (full == Call::kResize && call == Call::kWrite)
                 ? absl::ResourceExhaustedError("no space")
                 : absl::OkStatus();
    });
    for (int i = 0; i < 3; ++i) {
      const absl::Status status = folder->Append(all[1]);
      EXPECT_EQ(status.ok(), full == Call::kCreate) << status;
      if (full == Call::kCreate) {
        EXPECT_EQ(folder->BeginLog().code(), StatusCode::kResourceExhausted);
        EXPECT_EQ(folder->WriteSnapshot(1, {}).code(), StatusCode::kResourceExhausted);
      } else {
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
      }
    }
    files.set_hook({});
    ASSERT_TRUE(folder->Append(all[2]).ok()) << "there is room again";
    folder.reset();
    ASSERT_TRUE(Open().ok());
    std::vector<std::string> due = {all[0], all[2]};
    if (full == Call::kCreate) due = {all[0], all[1], all[1], all[1], all[2]};
    EXPECT_EQ(records, due) << "the refused change is not there";
  }
}

TEST_F(LogFolderTest, NoticesThatTheLogIsGone) {
  const auto folder = *Open();
  EXPECT_TRUE(folder->CheckThere().ok());
  ASSERT_TRUE(folder->BeginLog().ok());
  fs::remove(File("log.1"));
  EXPECT_TRUE(folder->CheckThere().ok()) << "nothing is written to this one any more";
  ASSERT_TRUE(folder->WriteSnapshot(2, DirectoryImage()).ok());
  EXPECT_TRUE(folder->CheckThere().ok());
  fs::copy_file(File("log.2"), File("copy"));
  fs::rename(File("copy"), File("log.2"));
  EXPECT_THAT(folder->CheckThere().ToString(), HasSubstr("log.2 was replaced"));
  fs::remove(File("log.2"));
  EXPECT_EQ(folder->CheckThere().code(), StatusCode::kUnavailable);
  EXPECT_THAT(folder->CheckThere().ToString(), HasSubstr("log.2 was removed"));
}

TEST_F(LogFolderTest, NoticesThatALogOfAnEarlierIncarnationIsGone) {
  ASSERT_TRUE(Open().ok());
  const auto folder = *Open();
  EXPECT_TRUE(folder->CheckThere().ok());
  fs::remove(File("log.1"));
  EXPECT_FALSE(folder->CheckThere().ok());
}

// A snapshot that removes a log while another thread looks at it raises no alarm.
TEST_F(LogFolderTest, NoticesLogsThatAppearAndDisappear) {
  const auto folder = *Open();
  std::atomic<bool> done{false};
  std::thread looker([&] {
    while (!done) EXPECT_TRUE(folder->CheckThere().ok());
  });
  for (uint64_t number = 2; number < 200; ++number) {
    EXPECT_TRUE(folder->BeginLog().ok());
    EXPECT_TRUE(folder->WriteSnapshot(number, DirectoryImage()).ok());
  }
  done = true;
  looker.join();
}

// A file whose sync failed is not trusted any more: the next log records where it ended.
TEST_F(LogFolderTest, ALogWhoseSyncFailedIsGivenUp) {
  const std::vector<std::string> all = SomeRecords();
  auto folder = *Open();
  ASSERT_TRUE(folder->Append(all[0]).ok());
  const uint64_t end = folder->log_bytes();
  bool can_cut = true;
  files.set_hook([&](Call call, const std::string&) {
    const bool fails = call == Call::kSync || (call == Call::kResize && !can_cut);
    return fails ? absl::UnavailableError("EIO") : absl::OkStatus();
  });
  can_cut = false;
  EXPECT_EQ(folder->Append(all[1]).code(), StatusCode::kUnavailable);
  EXPECT_GT(fs::file_size(File("log.1")), end) << "the bytes are there, and could not be cut";
  files.set_hook({});
  ASSERT_TRUE(folder->Append(all[2]).ok());
  EXPECT_EQ(folder->log_number(), 2u);
  folder.reset();
  const auto again = Open();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(records, (std::vector{all[0], all[2]}));
}

}  // namespace
}  // namespace ckv
