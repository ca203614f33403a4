// Goal: an export returns what was loaded, byte for byte, from holders that have it hot or cold.
// Otherwise it is an error and writes no file.
// Method: holders and a directory in this process; files loaded, exported and compared.

#include <filesystem>

#include "client/tools/ctl/corpus/chunk_reader.h"
#include "client/tools/ctl/fleet.h"
#include "store/formats/import.h"
#include "tests/client/tools/ctl/load_fleet.h"

namespace ckv::ctl {
namespace {

using test::ReadTestFile;
using test::RowsOfFile;
using test::TempPath;
using test::WriteTestFile;
using testing::AllOf;
using testing::HasSubstr;

using CorpusExportTest = test::LoadFleet;

TEST_F(CorpusExportTest, ExportsALoadedFileByteForByte) {
  StartHolders(2);
  // Rows of 80 bytes: 13,000 tokens are a layer of 1 MB, so more than a piece.
  const std::string path = RowsOfFile(14'000, 100, 1).Write("rows");
  const std::string out = TempPath("out");
  for (const char* chunk_tokens : {"14000", "999"}) {
    MustRun({"corpus", "load", "a", path, "--chunk-tokens", chunk_tokens, "--replace"});
    const Json json = MustRun({"corpus", "export", "a", "--out", out});
    EXPECT_EQ(json["files"].size(), 1u);
    EXPECT_EQ(json["files"][0]["base_position"], 100);
    EXPECT_EQ(json["bytes"], 14'000 * 160);
    EXPECT_TRUE(ReadTestFile(out) == ReadTestFile(path)) << chunk_tokens;
  }
  // The file loads again as the same chunks.
  EXPECT_EQ(MustRun({"corpus", "load", "b", out, "--chunk-tokens", "999"})["chunks_new"], 0);
}

// A fresh process on a full folder has all chunks cold; they are read from their files.
TEST_F(CorpusExportTest, ExportsColdChunksAfterARestart) {
  // A store of 1 MiB, and 2.2 MB of rows.
  StartDurableHolders(2, 1u << 20);
  const std::string path = RowsOfFile(14'000, 0, 1).Write("rows");
  MustRun({"corpus", "load", "a", path, "--chunk-tokens", "1000", "--replicas", "2"});
  for (const size_t holder : {0u, 1u}) {
    StopHolder(holder);
    StartDurableHolder(holder, 1u << 20);
  }
  const std::string out = TempPath("out");
  MustRun({"corpus", "export", "a", "--out", out});
  EXPECT_TRUE(ReadTestFile(out) == ReadTestFile(path));
  EXPECT_EQ(StatsOf(0).used_bytes() + StatsOf(1).used_bytes(), 0u);  // still cold
}

TEST_F(CorpusExportTest, AChainIsAFile) {
  StartHolders(2);
  const RowsOfFile a(40, 0, 1), b(24, 40, 2), far(30, 500, 3);
  MustRun({"corpus", "load", "c", a.Write("a"), b.Write("b"), far.Write("far"), "--chunk-tokens",
           "16"});
  std::filesystem::create_directories(TempPath("many"));
  const std::string out = TempPath("many/rows.safetensors");
  const Json json = MustRun({"corpus", "export", "c", "--out", out});
  ASSERT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(json["files"][0]["token_count"], 64);
  EXPECT_EQ(json["files"][1]["path"], TempPath("many/rows-00002-of-00002.safetensors"));
  EXPECT_TRUE(ReadTestFile(TempPath("many/rows-00002-of-00002.safetensors")) ==
              ReadTestFile(far.Write("far")));
  EXPECT_FALSE(std::filesystem::exists(out));
  // Chosen chunks: 1 and 2 follow each other, 4 does not.
  const Json some = MustRun({"corpus", "export", "c", "--out", out, "--chunks", "1-2,4"});
  ASSERT_EQ(some["files"].size(), 2u);
  EXPECT_EQ(some["files"][0]["base_position"], 16);
  EXPECT_EQ(Run({"corpus", "export", "c", "--out", out, "--chunks", "9"}).code, 2);

  const std::string lines = WriteTestFile("lines.jsonl", "[1, 2, 3]\n[4, 5]\n");
  MustRun({"corpus", "load", "alone", lines, "--cut", "document", "--standalone"});
  const Json alone = MustRun({"corpus", "export", "alone", "--out", out});
  ASSERT_EQ(alone["files"].size(), 2u);
  // One file for each chunk, and they load as the same chunks.
  const Json again = MustRun({"corpus", "load", "again", alone["files"][0]["path"],
                              alone["files"][1]["path"], "--standalone"});
  EXPECT_EQ(again["chunks_shared"], 2);
}

TEST_F(CorpusExportTest, AnotherReplicaAnswersForOneThatFails) {
  StartHolders(2);
  const std::string path = RowsOfFile(64, 0, 1).Write("rows");
  MustRun({"corpus", "load", "a", path, "--chunk-tokens", "16", "--replicas", "2"});
  // A copy is dropped without the directory's knowledge, and then a whole holder stops.
  const Json shown = MustRun({"corpus", "show", "a"});
  v1::DropChunkRequest drop;
  drop.set_id(std::string(ChunkId::FromHex(std::string(shown["chunks"][0]["id"]))->AsBytes()));
  v1::DropChunkReply dropped;
  ASSERT_TRUE(holder_stubs_[0]->DropChunk(test::Call().get(), drop, &dropped).ok());
  const std::string out = TempPath("replica");
  const Outcome outcome = Run({"corpus", "export", "a", "--out", out});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(ReadTestFile(out) == ReadTestFile(path));
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("warning: chunk 0"), HasSubstr("holder h0")));
  std::filesystem::remove(out);

  StopHolder(0);
  EXPECT_EQ(Run({"corpus", "export", "a", "--out", out}).code, 0);
  EXPECT_TRUE(ReadTestFile(out) == ReadTestFile(path));
  std::filesystem::remove(out);
  // With no holder left there is an error, and no part of a file.
  ASSERT_TRUE(holder_stubs_[1]->DropChunk(test::Call().get(), drop, &dropped).ok());
  const Outcome lost = Run({"corpus", "export", "a", "--out", out});
  EXPECT_EQ(lost.code, 4) << lost.err;  // h0 may have it
  EXPECT_THAT(lost.err, HasSubstr("chunk 0 of corpus a"));
  EXPECT_FALSE(std::filesystem::exists(out));
  MustRun({"corpus", "load", "one", path, "--chunk-tokens", "16"});
  const Json one = MustRun({"corpus", "show", "one"});
  for (const Json& chunk : one["chunks"]) {
    drop.set_id(std::string(ChunkId::FromHex(std::string(chunk["id"]))->AsBytes()));
    ASSERT_TRUE(holder_stubs_[1]->DropChunk(test::Call().get(), drop, &dropped).ok());
  }
  EXPECT_EQ(Run({"corpus", "export", "one", "--out", out}).code, 9);
  EXPECT_EQ(Run({"corpus", "export", "nosuch", "--out", out}).code, 3);
  EXPECT_EQ(Run({"corpus", "export", "a", "--out", TempPath("no/such/folder")}).code, 7);
}

// That one holder lost a chunk does not mean that a holder with another failure lost it, too.
TEST_F(CorpusExportTest, AHolderThatFailsMayHaveWhatAnotherLost) {
  StartHolders(1);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto no_holder = builder.BuildAndStart();
  v1::RegisterRequest registration;
  registration.mutable_member()->set_id("odd");
  registration.mutable_member()->set_role(v1::MEMBER_ROLE_HOLDER);
  registration.mutable_member()->set_control_address("127.0.0.1:" + std::to_string(port));
  registration.set_lease_ttl_ms(60'000);
  v1::RegisterReply registered;
  ASSERT_TRUE(directory_stub_->Register(test::Call().get(), registration, &registered).ok());
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {16}, /*seed=*/1);
  const std::string out = TempPath("lost");
  for (const std::vector<HolderId>& holders :
       {std::vector<HolderId>{{"h0"}, {"odd"}}, {{"odd"}, {"h0"}}}) {
    ASSERT_TRUE(
        test::Publish(*directory_stub_, corpus.Publish(holders[0].name, "", {holders})).ok());
    const Outcome outcome = Run({"corpus", "export", holders[0].name, "--out", out});
    EXPECT_NE(outcome.code, 0);
    EXPECT_NE(outcome.code, 9) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("holder odd"));
  }
}

// A holder that sends whatever pieces a test sets.
class LyingHolder final : public v1::HolderService::Service {
 public:
  grpc::Status ReadChunk(grpc::ServerContext* /*context*/, const v1::ReadChunkRequest* /*request*/,
                         grpc::ServerWriter<v1::ReadChunkReply>* writer) override {
    for (const v1::ReadChunkReply& piece : pieces) {
      if (!writer->Write(piece)) break;
    }
    return grpc::Status::OK;
  }
  std::vector<v1::ReadChunkReply> pieces;
};

TEST(ChunkReader, RowsThatAreNotDueOrNotRightAreRefused) {
  LyingHolder service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  const Member member = {{"liar"}, MemberRole::kHolder, "127.0.0.1:" + std::to_string(port), {}};
  const RowsOfFile rows(8, 0, 1);
  const auto stub = ConnectHolder(member);
  const std::string tenant;
  const HolderCalls calls{*stub, member, rows.geometry, tenant, *Clock::Real()};
  const ChunkInfo info = DescribeChunk(rows.geometry, ChunkId(), 0, rows.token_ids, {0, 8},
                                       [&](uint32_t layer) { return rows.layer(layer); });
  const auto piece = [&](uint32_t layer, size_t offset, size_t size) {
    v1::ReadChunkReply reply;
    reply.set_tensor(layer);
    reply.set_offset_bytes(offset);
    reply.set_rows(reinterpret_cast<const char*>(rows.layer(layer % 2).data()) + offset % 640,
                   size);
    return reply;
  };
  uint64_t taken = 0;
  const auto read = [&](std::vector<v1::ReadChunkReply> pieces) {
    service.pieces = std::move(pieces);
    taken = 0;
    return ReadChunkRows(calls, info, [&](uint32_t, uint64_t, std::span<const std::byte> part) {
      taken += part.size();
      return absl::OkStatus();
    });
  };
  const absl::Status good = read({piece(0, 0, 400), piece(0, 400, 240), piece(1, 0, 640)});
  EXPECT_TRUE(good.ok()) << good;
  EXPECT_EQ(taken, 1280u);
  constexpr auto kInternal = absl::StatusCode::kInternal;
  EXPECT_EQ(read({}).code(), kInternal);
  EXPECT_EQ(read({piece(0, 0, 640), piece(1, 0, 639)}).code(), kInternal);  // too few
  EXPECT_EQ(read({piece(1, 0, 640)}).code(), kInternal);                    // out of order
  EXPECT_EQ(read({piece(0, 80, 80)}).code(), kInternal);                    // a gap
  EXPECT_EQ(read({piece(0, 0, 0)}).code(), kInternal);                      // nothing
  EXPECT_EQ(read({piece(0, 0, 80), piece(0, 0, 80)}).code(), kInternal);    // again
  v1::ReadChunkReply large = piece(0, 0, 640);
  large.mutable_rows()->append("x");
  EXPECT_EQ(read({large}).code(), kInternal);  // past the layer's end
  EXPECT_EQ(read({piece(0, 0, 640), piece(1, 0, 640), piece(1, 0, 80)}).code(), kInternal);
  v1::ReadChunkReply wrong = piece(0, 0, 640);
  (*wrong.mutable_rows())[5] ^= 1;
  const absl::Status damaged = read({wrong, piece(1, 0, 640)});
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(damaged.message()), HasSubstr("holder liar: the rows of layer 0"));
  server->Shutdown();
}

}  // namespace
}  // namespace ckv::ctl
