// Goal: a load sends each row once, holds few chunks at a time, publishes nothing that is
// incomplete on its holders, and reports where each chunk was before.
// Method: holders and a directory in this process, ckvctl's commands and their parts against them.

#include "client/publish/chunk_puts.h"

#include <atomic>

#include "client/publish/chunk_copy.h"
#include "client/tools/ctl/corpus/finite_rows.h"
#include "store/formats/import.h"
#include "tests/client/tools/ctl/load_fleet.h"

namespace ckv::ctl {
namespace {

using test::Call;
using test::RowsOfFile;
using test::SmallEngine;
using test::TempPath;
using test::WriteTestFile;
using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Not;

using CorpusLoadTest = test::LoadFleet;

// Chunks of 64 tokens, each made when it is read; counts how many are alive.
class CountingSource final : public ChunkSource {
 public:
  explicit CountingSource(uint32_t chunk_count) {
    geometry_ = test::RowsGeometry();
    ChunkPlanner planner(geometry_, TenantKey(), &chunks_);
    for (uint32_t i = 0; i < chunk_count; ++i) {
      EXPECT_TRUE(planner.Add(ChunkId(), 0, Tokens(i), {}, "chunk").ok());
    }
  }
  std::span<const int32_t> TokensOf(uint32_t) const override { return {}; }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override {
    ++read_count;
    if (ordinal == failing) return absl::DataLossError("the file is cut off");
    const uint32_t now = live.fetch_add(1) + 1;
    most = std::max(most, now);
    auto rows = std::shared_ptr<const std::vector<std::byte>>(
        new std::vector<std::byte>(64 * geometry_.row_bytes(), static_cast<std::byte>(ordinal)),
        [this](const std::vector<std::byte>* done) {
          delete done;
          live.fetch_sub(1);
        });
    SourceChunk chunk;
    chunk.rows = [all = std::span(*rows)](uint32_t) { return all; };
    chunk.owned = std::move(rows);
    chunk.info = DescribeChunk(geometry_, ChunkId(), 0, Tokens(ordinal), {0, 64}, chunk.rows);
    return chunk;
  }

  std::atomic<uint32_t> live{0};
  uint32_t most = 0;
  uint32_t read_count = 0;
  uint32_t failing = UINT32_MAX;

 private:
  static std::vector<int32_t> Tokens(uint32_t ordinal) {
    return std::vector<int32_t>(64, static_cast<int32_t>(ordinal));
  }
};

std::vector<std::vector<HolderId>> OnAll(const std::vector<Member>& members, size_t chunks) {
  std::vector<HolderId> ids;
  for (const Member& member : members) ids.push_back(member.id);
  return std::vector<std::vector<HolderId>>(chunks, ids);
}

TEST_F(CorpusLoadTest, FewChunksAreInMemoryAtATime) {
  StartHolders(3);
  const std::vector<Member> members = Members();
  CountingSource source(100);
  std::atomic<uint64_t> bytes{0};
  const auto report = PutChunks(source, OnAll(members, 100), members, "", *Clock::Real(),
                                {[&](uint64_t sent) { bytes += sent; }, nullptr});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_LE(source.most, kChunksInFlightMax);
  EXPECT_GE(source.most, 2u);  // and yet more than one
  EXPECT_EQ(source.live, 0u);
  EXPECT_EQ(source.read_count, 100u);
  EXPECT_EQ(bytes, 3 * source.row_bytes());
  EXPECT_EQ(report->tallies.at("h1").copies_sent, 100u);
  // A chunk without a placement is not read.
  std::vector<std::vector<HolderId>> one(100);
  one[42] = {members[0].id};
  ASSERT_TRUE(PutChunks(source, one, members, "", *Clock::Real(), {}).ok());
  EXPECT_EQ(source.read_count, 101u);
}

TEST_F(CorpusLoadTest, AFailureEndsTheLoadAndLeavesNoChunkBehind) {
  StartHolders(2);
  const std::vector<Member> members = Members();
  CountingSource source(50);
  source.failing = 20;
  const absl::Status status =
      PutChunks(source, OnAll(members, 50), members, "", *Clock::Real(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("cut off"), HasSubstr("of 100 chunk")));
  EXPECT_EQ(source.live, 0u);
  EXPECT_EQ(source.read_count, 21u);
  source.failing = UINT32_MAX;
  StopHolder(1);
  EXPECT_FALSE(PutChunks(source, OnAll(members, 50), members, "", *Clock::Real(), {}).ok());
  EXPECT_EQ(source.live, 0u);
}

TEST_F(CorpusLoadTest, DoesNotSendStoredChunksAgain) {
  StartDurableHolders(2);
  const std::vector<Member> members = Members();
  CountingSource source(10);
  const auto put = [&] {
    return PutChunks(source, OnAll(members, 10), members, "t", *Clock::Real(), {});
  };
  ASSERT_TRUE(put().ok());
  auto again = put();
  ASSERT_TRUE(again.ok()) << again.status();
  for (const auto& [name, tally] : again->tallies) {
    EXPECT_EQ(tally.copies_found, 10u) << name;
    EXPECT_EQ(tally.bytes_sent, 0u) << name;
  }
  // Nor after a restart, which finds the durable chunks. A lost copy is sent alone.
  StopHolder(0);
  StartDurableHolder(0);
  v1::DropChunkRequest drop;
  drop.set_id(std::string(source.chunks()[3].id.AsBytes()));
  v1::DropChunkReply dropped;
  ASSERT_TRUE(holder_stubs_[1]->DropChunk(Call().get(), drop, &dropped).ok());
  const std::vector<Member> restarted = Members();
  again = PutChunks(source, OnAll(restarted, 10), restarted, "t", *Clock::Real(), {});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->tallies.at("h0").bytes_sent, 0u);
  EXPECT_EQ(again->tallies.at("h1").copies_sent, 1u);
  EXPECT_EQ(again->tallies.at("h1").bytes_sent, 64u * 80 * 2);
}

// Between the puts and the publication, chunks that no corpus names yet may be dropped.
TEST_F(CorpusLoadTest, PutsMissingChunksAgainBeforeThePublication) {
  StartHolders(2);
  const std::vector<Member> members = Members();
  CountingSource source(10);
  const auto placement = OnAll(members, 10);
  auto report = PutChunks(source, placement, members, "", *Clock::Real(), {});
  ASSERT_TRUE(report.ok()) << report.status();
  v1::DropChunkReply dropped;
  for (const uint32_t ordinal : {2u, 7u}) {
    v1::DropChunkRequest drop;
    drop.set_id(std::string(source.chunks()[ordinal].id.AsBytes()));
    ASSERT_TRUE(holder_stubs_[ordinal % 2]->DropChunk(Call().get(), drop, &dropped).ok());
  }
  const absl::Status checked = CheckPuts(source, placement, members, "", *Clock::Real(), *report);
  ASSERT_TRUE(checked.ok()) << checked;
  EXPECT_EQ(source.read_count, 12u);
  EXPECT_EQ(StatsOf(0).chunk_count(), 10u);
  EXPECT_EQ(StatsOf(1).chunk_count(), 10u);
  EXPECT_EQ(report->tallies.at("h0").bytes_sent, 11u * 64 * 80 * 2);
}

TEST_F(CorpusLoadTest, OtherRowsUnderTheSameIdAreRefused) {
  StartHolders(1);
  RowsOfFile rows(32, 0, 1);
  MustRun({"corpus", "load", "a", rows.Write("rows")});
  rows.values[7] ^= 1;
  const std::string other = rows.Write("other");
  for (const char* option : {"--dry-run", "--max-tokens=32"}) {
    const Outcome outcome = Run({"corpus", "load", "b", other, option});
    EXPECT_EQ(outcome.code, 9) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("holder h0"), HasSubstr("another revision")));
  }
}

TEST_F(CorpusLoadTest, ANewVersionKeepsTheNumberOfCopiesByDefault) {
  StartHolders(2);
  const std::string file = RowsOfFile(64, 0, 1).Write("copies");
  const auto copies_of = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"corpus", "load", "a", file, "--replace"});
    MustRun(more);
    return Run({"corpus", "show", "a"}).json["chunks"][0]["holders"].size();
  };
  EXPECT_EQ(copies_of({}), 1u);
  EXPECT_EQ(copies_of({"--replicas", "2"}), 2u);
  EXPECT_EQ(copies_of({}), 2u);
  EXPECT_EQ(copies_of({"--replicas", "1"}), 1u);
}

TEST_F(CorpusLoadTest, ReportsNewSharedAndReusedChunks) {
  StartHolders(2);
  const std::string head = RowsOfFile(64, 0, 1).Write("head");
  const std::string tail = RowsOfFile(40, 64, 2).Write("tail");
  const auto load = [&](const std::string& name, std::vector<std::string> rest) {
    rest.insert(rest.begin(), {"corpus", "load", name});
    rest.insert(rest.end(), {"--chunk-tokens", "16", "--replicas", "2"});
    return MustRun(rest);
  };
  const auto origins = [](const Json& json) {
    return std::vector<uint32_t>{json["chunks_new"], json["chunks_shared"], json["chunks_reused"]};
  };
  // A dry run reports what the load would do, and does nothing.
  const Json plan = load("a", {head, "--dry-run"});
  EXPECT_EQ(origins(plan), (std::vector<uint32_t>{4, 0, 0}));
  EXPECT_EQ(plan["copies_sent"], 8);
  EXPECT_EQ(plan["bytes_sent"], 2 * 64 * 160);
  EXPECT_EQ(plan["holders"][1]["bytes_sent"], 64 * 160);
  EXPECT_EQ(StatsOf(0).chunk_count() + StatsOf(1).chunk_count(), 0u);
  EXPECT_EQ(Run({"corpus", "show", "a"}).code, 3);
  const Json first = load("a", {head});
  EXPECT_EQ(first["bytes_sent"], plan["bytes_sent"]);
  EXPECT_EQ(first["holders"], plan["holders"]);
  EXPECT_EQ(origins(first), (std::vector<uint32_t>{4, 0, 0}));
  // Another corpus with the same beginning; and a new version of the first.
  const Json second = load("b", {head, tail});
  EXPECT_EQ(origins(second), (std::vector<uint32_t>{3, 4, 0}));
  EXPECT_EQ(second["bytes_sent"], 2 * 40 * 160);
  const Json planned = load("a", {head, tail, "--replace", "--dry-run"});
  const Json third = load("a", {head, tail, "--replace"});
  EXPECT_EQ(origins(third), (std::vector<uint32_t>{0, 3, 4}));
  EXPECT_EQ(origins(planned), origins(third));
  EXPECT_EQ(third["bytes_sent"], 0);
  EXPECT_EQ(planned["bytes_sent"], 0);
  EXPECT_THAT(Run({"corpus", "load", "a", head, "--dry-run"}).err, HasSubstr("--replace"));
}

TEST_F(CorpusLoadTest, ExtendsACorpusAndLeavesItsChunks) {
  StartHolders(2);
  const std::string head = RowsOfFile(64, 0, 1).Write("head");
  const std::string tail = RowsOfFile(40, 64, 2).Write("tail");
  const std::string other = RowsOfFile(64, 0, 3).Write("other");
  const auto load = [&](const std::string& file, std::vector<std::string> rest) {
    rest.insert(rest.begin(), {"corpus", "load", "a", file, "--chunk-tokens", "16"});
    return Run(rest);
  };
  const auto chunks = [&](const std::string& name) {
    return MustRun({"corpus", "show", name})["chunks"];
  };
  const auto new_and_reused = [](const Json& json) {
    return std::vector<uint32_t>{json["chunks_new"], json["chunks_reused"]};
  };
  const Outcome none = load(head, {"--extend"});
  EXPECT_EQ(none.code, 3) << none.err;
  EXPECT_THAT(none.err, HasSubstr("without --extend"));
  const Json first = load(head, {"--replicas", "2"}).json;
  const Json before = chunks("a");
  EXPECT_THAT(load(tail, {}).err, HasSubstr("--extend appends"));

  const Json plan = load(tail, {"--extend", "--dry-run"}).json;
  EXPECT_EQ(new_and_reused(plan), (std::vector<uint32_t>{3, 0}));
  EXPECT_EQ(chunks("a"), before);
  const Json extended = load(tail, {"--extend"}).json;
  EXPECT_EQ(new_and_reused(extended), (std::vector<uint32_t>{3, 0}));
  EXPECT_EQ(extended["bytes_sent"], 2 * 40 * 160);  // as many copies as the others have
  EXPECT_EQ(extended["bytes_sent"], plan["bytes_sent"]);
  EXPECT_EQ(extended["holders"], plan["holders"]);
  for (const Json& reported : {plan, extended}) {
    EXPECT_EQ(reported["chunk_begin"], 4);
    EXPECT_EQ(reported["chunks_appended"], 3);
  }
  const Json after = chunks("a");
  ASSERT_EQ(after.size(), 7u);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i], before[i]);
  // The same as if it had been loaded at once.
  MustRun({"corpus", "load", "whole", head, tail, "--chunk-tokens", "16"});
  const Json whole = chunks("whole");
  for (size_t i = 0; i < after.size(); ++i) {
    EXPECT_EQ(after[i]["id"], whole[i]["id"]);
    EXPECT_EQ(after[i]["position"], whole[i]["position"]);
  }

  // A text of its own, which ends where the first chunk of `tail` begins.
  EXPECT_EQ(new_and_reused(load(other, {"--extend"}).json), (std::vector<uint32_t>{4, 0}));
  EXPECT_EQ(chunks("a")[7]["position"], 0);
  // The same again changes nothing, as if its first answer was lost.
  const Json again = load(tail, {"--extend"}).json;
  EXPECT_EQ(new_and_reused(again), (std::vector<uint32_t>{0, 3}));
  EXPECT_EQ(again["chunks_appended"], 0);
  EXPECT_EQ(again["bytes_sent"], 0);
  EXPECT_EQ(chunks("a").size(), 11u);
  // A part without a parent has none again.
  const std::string apart = RowsOfFile(16, 500, 4).Write("apart");
  MustRun({"corpus", "load", "parts", head, apart});
  const Json both = MustRun({"corpus", "load", "parts", head, apart, other, "--extend"});
  EXPECT_EQ(new_and_reused(both), (std::vector<uint32_t>{1, 2}));
}

TEST_F(CorpusLoadTest, RefusesFilesThatCannotExtend) {
  StartHolders(1);
  MustRun({"corpus", "load", "a", RowsOfFile(64, 0, 1).Write("head")});
  const auto error = [&](const std::string& file, std::vector<std::string> rest = {}) {
    rest.insert(rest.begin(), {"corpus", "load", "a", file, "--extend"});
    const Outcome outcome = Run(rest);
    EXPECT_NE(outcome.code, 0);
    return outcome.err;
  };
  EXPECT_THAT(error(RowsOfFile(16, 200, 4).Write("gap")),
              AllOf(HasSubstr("begin at position 200"), HasSubstr("ends at 64")));
  EXPECT_THAT(error(RowsOfFile(16, 64, 5, /*layers=*/3).Write("deeper")),
              AllOf(HasSubstr("another geometry"), HasSubstr("layers")));
  // Prefilled by the reference engine, which has another geometry, after minutes.
  const std::string text = WriteTestFile("text.txt", std::string(3000, 'a'));
  EXPECT_THAT(error(text, {"--text"}), HasSubstr("another geometry"));
  const std::string tail = RowsOfFile(16, 64, 2).Write("tail");
  EXPECT_THAT(error(tail, {"--replace"}), HasSubstr("--replace and --extend"));
  EXPECT_THAT(error(tail, {"--replicas", "2"}), HasSubstr("--replicas"));
  EXPECT_THAT(error(tail, {"--tenant", "acme"}), HasSubstr("without --tenant"));
  // Two texts behind one chunk.
  MustRun({"corpus", "load", "a", tail, "--extend"});
  EXPECT_THAT(error(RowsOfFile(16, 64, 3).Write("branch")),
              AllOf(HasSubstr("another chunk behind"), HasSubstr("--replace")));
  EXPECT_EQ(MustRun({"corpus", "show", "a"})["chunks"].size(), 2u);
  // Two texts that end at one position.
  MustRun({"corpus", "load", "a", RowsOfFile(80, 0, 6).Write("other"), "--extend"});
  EXPECT_THAT(error(RowsOfFile(16, 80, 7).Write("third")), HasSubstr("2 texts of corpus 'a' end"));
}

// Chunks that a load put before it was interrupted are reused, though no corpus has them.
TEST_F(CorpusLoadTest, ContinuesAnInterruptedLoad) {
  StartDurableHolders(2);
  const RowsOfFile rows(64, 0, 1);
  const std::string path = rows.Write("rows");
  auto source = OpenRowFiles({path}, {.chunk_tokens = 16}, 0);
  ASSERT_TRUE(source.ok());
  const std::vector<Member> members = Members();
  std::vector<std::vector<HolderId>> some(4);
  some[0] = {members[0].id};
  some[2] = {members[1].id};
  ASSERT_TRUE(PutChunks(**source, some, members, "", *Clock::Real(), {}).ok());
  const Json json = MustRun({"corpus", "load", "a", path, "--chunk-tokens", "16"});
  EXPECT_EQ(json["chunks_new"], 2);
  EXPECT_EQ(json["chunks_reused"], 2);
  EXPECT_EQ(json["copies_found"], 2);
  EXPECT_EQ(json["bytes_sent"], 2 * 16 * 160);
}

TEST_F(CorpusLoadTest, StandaloneDocumentsAreChunksWithoutParents) {
  StartHolders(2);
  const std::string one = WriteTestFile("one.jsonl", "[1, 2, 3]\n{\"token_ids\": [4, 5]}\n");
  const std::string two = WriteTestFile("two.jsonl", "[9, 9, 9, 9]\n[4, 5]\n");
  const std::vector<std::string> how = {"--cut", "document", "--standalone"};
  const auto load = [&](const std::string& name, const std::string& file) {
    std::vector<std::string> arguments = {"corpus", "load", name, file};
    arguments.insert(arguments.end(), how.begin(), how.end());
    return MustRun(arguments);
  };
  load("one", one);
  EXPECT_EQ(load("two", two)["chunks_shared"], 1);
  const Json shown_one = MustRun({"corpus", "show", "one"});
  const Json shown_two = MustRun({"corpus", "show", "two"});
  EXPECT_EQ(shown_one["chunks"][1]["id"], shown_two["chunks"][1]["id"]);
  for (const Json& chunk : shown_two["chunks"]) {
    EXPECT_EQ(chunk["parent"], "");
    EXPECT_EQ(chunk["position"], 0);
  }
  const Outcome bad = Run({"corpus", "load", "bad", WriteTestFile("bad.jsonl", "[1]\n[1, 300]\n")});
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("bad.jsonl:2: token_ids[1]"));
}

TEST_F(CorpusLoadTest, LoadsFoldersAndArrays) {
  StartHolders(1);
  const RowsOfFile rows(24, 0, 3);
  MustRun({"corpus", "load", "file", rows.Write("rows")});
  // The same, its tensors in two files.
  const std::string folder = TempPath("folder");
  std::filesystem::create_directories(folder);
  const TensorToWrite a[] = {{"layers.1.ckv", TensorDtype::kBf16, {24, 40}, rows.layer(1)}};
  const TensorToWrite b[] = {
      {"layers.0.ckv", TensorDtype::kBf16, {24, 40}, rows.layer(0)},
      {"token_ids", TensorDtype::kI32, {24}, std::as_bytes(std::span(rows.token_ids))}};
  ASSERT_TRUE(WriteSafetensors(folder + "/a", {}, a).ok());
  ASSERT_TRUE(WriteSafetensors(folder + "/b", RowFileMetadata(rows.geometry, 0), b).ok());
  std::ofstream(folder + "/model.safetensors.index.json")
      << R"({"weight_map": {"layers.0.ckv": "b", "layers.1.ckv": "a", "token_ids": "b"}})";
  EXPECT_EQ(MustRun({"corpus", "load", "folder", folder})["chunks_shared"], 1);

  const std::string array =
      test::WriteNpy("rows.npy", "<u2", "(2, 24, 40)", std::as_bytes(std::span(rows.values)));
  const std::string ids =
      test::WriteNpy("ids.npy", "<i4", "(24,)", std::as_bytes(std::span(rows.token_ids)));
  const std::string geometry = WriteTestFile(
      "geometry.json",
      R"({"model": "test/rows", "revision": "r1", "layers": 2, "d_qk": 40, "d_v": 32, "d_rope": 8,)"
      R"( "dtype": "bf16", "rope_style": "interleaved", "rope_theta": 10000,)"
      R"( "softmax_scale": 0.20000000298023224})");
  EXPECT_EQ(MustRun({"corpus", "load", "array", array, "--dtype", "bf16", "--geometry", geometry,
                     "--token-ids", ids})["chunks_shared"],
            1);
}

// Values that are not finite are loaded with a warning, or refused if requested.
TEST_F(CorpusLoadTest, ReportsRowsThatAreNotFinite) {
  StartHolders(2);
  RowsOfFile rows(48, 100, 1);
  EXPECT_THAT(Run({"corpus", "load", "good", rows.Write("good")}).err, Not(HasSubstr("NaN")));
  const size_t layer_values = size_t{48} * 40;
  rows.values[layer_values + 20 * 40 + 7] = 0x7fc1;  // layer 1, token 20: NaN
  rows.values[layer_values + 40 * 40] = 0xff80;      // token 40: an infinity
  const std::string path = rows.Write("bad");
  const Outcome loaded = Run({"corpus", "load", "bad", path, "--chunk-tokens", "16"});
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_THAT(
      loaded.err,
      HasSubstr("2 values are NaN, infinite or beyond 2^48, first at layer 1, position 120, "
                "value 7"));
  const Outcome refused =
      Run({"corpus", "load", "worse", path, "--chunk-tokens", "16", "--reject-non-finite"});
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_THAT(refused.err,
              HasSubstr("chunk 1: NaN, infinite or beyond 2^48 at layer 1, position 120, value 7"));
  EXPECT_EQ(Run({"corpus", "show", "worse"}).code, 3);
}

TEST(FindNonFinite, LooksAtEveryPartOfAnFp8Row) {
  Geometry geometry;
  geometry.d_v = 512;
  geometry.d_rope = 64;
  geometry.d_qk = 576;
  geometry.dtype = RowDtype::kFp8DsMla;
  ASSERT_EQ(geometry.row_bytes(), 656u);
  const auto found_with = [&](size_t at, std::vector<uint8_t> bytes) {
    std::vector<std::byte> rows(3 * 656);
    std::memcpy(rows.data() + 656 + at, bytes.data(), bytes.size());
    const NonFinite found = FindNonFinite(geometry, rows);
    return std::pair(found.count, found.first);
  };
  const uint64_t row = 512 + 4 + 64;  // values
  EXPECT_EQ(found_with(5, {0x7e, 0x80}), std::pair(uint64_t{0}, uint64_t{0}));
  EXPECT_EQ(found_with(5, {0xff, 0x7f}), std::pair(uint64_t{2}, row + 5));
  EXPECT_EQ(found_with(512 + 4, {0, 0, 0x80, 0x7f}), std::pair(uint64_t{1}, row + 513));
  EXPECT_EQ(found_with(528 + 2, {0x80, 0xff}), std::pair(uint64_t{1}, row + 517));
}

}  // namespace
}  // namespace ckv::ctl
