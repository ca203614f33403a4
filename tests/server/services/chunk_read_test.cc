// Goal: ReadChunk returns a chunk's rows as they were put, hot or cold, within its limits, and ends
// when its peer or the server does.
// Method: a holder in this process, called over gRPC; peers that stop reading.

#include "server/services/chunk_read.h"
#include "client/grpc/channel_stub.h"

#include <filesystem>

#include "tests/server/services/services_fixture.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using test::Call;
using test::Soon;

class ChunkReadTest : public test::ServicesTest {
 protected:
  void StartHolder(size_t capacity_bytes = 16u << 20, const std::string& folder = "") {
    Config config = MemberOf({"holder"}, "h0");
    config.store_capacity_bytes = capacity_bytes;
    config.store_path = folder;
    if (!folder.empty()) std::filesystem::create_directories(folder);
    holders_.clear();
    holder_stubs_.clear();
    holders_.push_back(test::StartDaemon(config));
    holder_stubs_.push_back(v1::HolderService::NewStub(MakeChannel(holders_[0]->address())));
  }
  v1::HolderService::Stub& holder() { return *holder_stubs_[0]; }

  static v1::ReadChunkRequest RequestFor(const test::TestCorpus& corpus, size_t chunk) {
    v1::ReadChunkRequest request;
    request.set_id(std::string(corpus.chunks[chunk].info.id.AsBytes()));
    *request.mutable_geometry() = ToProto(corpus.geometry);
    return request;
  }
  // Reads all; expects the rows that were put.
  void ExpectRows(const test::TestCorpus& corpus, size_t chunk) {
    Call call;
    const auto reader = holder().ReadChunk(call.get(), RequestFor(corpus, chunk));
    std::vector<std::string> layers(corpus.geometry.layers);
    v1::ReadChunkReply piece;
    uint32_t layer = 0;
    while (reader->Read(&piece)) {
      ASSERT_LT(piece.tensor(), layers.size());
      EXPECT_GE(piece.tensor(), layer);  // layers in order, and each from its start
      layer = piece.tensor();
      EXPECT_EQ(piece.offset_bytes(), layers[layer].size());
      EXPECT_LE(piece.rows().size(), kMessageRowsBytesMax);
      EXPECT_GT(piece.rows().size(), 0u);
      layers[layer] += piece.rows();
    }
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    for (uint32_t i = 0; i < layers.size(); ++i) {
      const auto due = std::as_bytes(std::span(corpus.chunks[chunk].layers[i]));
      ASSERT_EQ(layers[i].size(), due.size());
      EXPECT_TRUE(due.empty() || std::memcmp(layers[i].data(), due.data(), due.size()) == 0);
    }
  }
  grpc::StatusCode CodeOf(const v1::ReadChunkRequest& request) {
    Call call;
    const auto reader = holder().ReadChunk(call.get(), request);
    v1::ReadChunkReply piece;
    while (reader->Read(&piece)) {
    }
    return reader->Finish().error_code();
  }
  bool IsDurable(const test::TestCorpus& corpus, size_t chunk) {
    v1::GetChunkInfoRequest request;
    request.set_id(std::string(corpus.chunks[chunk].info.id.AsBytes()));
    *request.mutable_geometry() = ToProto(corpus.geometry);
    v1::GetChunkInfoReply reply;
    Call call;
    EXPECT_TRUE(holder().GetChunkInfo(call.get(), request, &reply).ok());
    return reply.durable();
  }
};

TEST_F(ChunkReadTest, GivesTheRowsThatWerePut) {
  StartHolder();
  // 12,000 rows of 192 bytes are three pieces a layer; nothing is none.
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {12'000, 0, 1}, /*seed=*/1);
  for (const test::TestChunk& chunk : corpus.chunks) {
    ASSERT_TRUE(test::Put(holder(), corpus.geometry, chunk).ok());
  }
  for (size_t i = 0; i < corpus.chunks.size(); ++i) ExpectRows(corpus, i);
  EXPECT_FALSE(IsDurable(corpus, 0));  // in memory only
}

TEST_F(ChunkReadTest, AColdChunkStaysCold) {
  const std::string folder = test::TempPath("cold");
  StartHolder(8u << 20, folder);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {12'000, 700}, /*seed=*/2);
  for (const test::TestChunk& chunk : corpus.chunks) {
    ASSERT_TRUE(test::Put(holder(), corpus.geometry, chunk).ok());
  }
  EXPECT_TRUE(IsDurable(corpus, 0));
  holders_[0]->Drain(Soon());
  StartHolder(8u << 20, folder);
  ASSERT_EQ(StatsOf(0).used_bytes(), 0u);
  EXPECT_TRUE(IsDurable(corpus, 1));
  ExpectRows(corpus, 0);
  ExpectRows(corpus, 1);
  EXPECT_EQ(StatsOf(0).used_bytes(), 0u);
}

TEST_F(ChunkReadTest, RefusesWhatIsNotTheTenants) {
  StartHolder();
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {40}, /*seed=*/3);
  auto messages = test::MessagesOf(corpus.geometry, corpus.chunks[0]);
  messages[0].mutable_header()->set_tenant("a");
  ASSERT_TRUE(test::PutMessages(holder(), messages).ok());
  v1::ReadChunkRequest request = RequestFor(corpus, 0);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::NOT_FOUND);
  request.set_tenant("b");
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::NOT_FOUND);
  request.set_tenant("a");
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::OK);
  request.mutable_geometry()->set_revision("other");
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::FAILED_PRECONDITION);
  request.mutable_geometry()->set_layers(1u << 30);
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request = RequestFor(corpus, 0);
  request.set_tenant(std::string(1000, 'a'));
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
  request.set_tenant("");
  request.set_id("short");
  EXPECT_EQ(CodeOf(request), grpc::StatusCode::INVALID_ARGUMENT);
}

// Peers that read nothing: they are bounded in number, one that disconnects makes room, and a drain
// ends the rest.
TEST_F(ChunkReadTest, ReadsInProgressAreBoundedAndADrainEndsThem) {
  StartHolder(64u << 20);
  // 27 MB of rows, more than flow control takes of a peer that does not read.
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {48'000, 5}, /*seed=*/4);
  for (const test::TestChunk& chunk : corpus.chunks) {
    ASSERT_TRUE(test::Put(holder(), corpus.geometry, chunk).ok());
  }
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::ReadChunkReply>>> readers;
  v1::ReadChunkReply piece;
  for (uint32_t i = 0; i < kReadCountMax; ++i) {
    calls.push_back(std::make_unique<Call>(std::chrono::seconds(60)));
    readers.push_back(holder().ReadChunk(calls[i]->get(), RequestFor(corpus, 0)));
    ASSERT_TRUE(readers[i]->Read(&piece));  // so it is in progress
  }
  EXPECT_EQ(CodeOf(RequestFor(corpus, 1)), grpc::StatusCode::RESOURCE_EXHAUSTED);
  calls[0]->get()->TryCancel();
  while (readers[0]->Read(&piece)) {
  }
  EXPECT_EQ(readers[0]->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // The holder learns of it a moment later.
  const Instant deadline = Soon();
  grpc::StatusCode code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  while (code == grpc::StatusCode::RESOURCE_EXHAUSTED && Clock::Real()->Now() < deadline) {
    code = CodeOf(RequestFor(corpus, 1));
  }
  EXPECT_EQ(code, grpc::StatusCode::OK);
  const Instant start = Clock::Real()->Now();
  holders_[0]->Drain(start + std::chrono::seconds(60));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(30));
  for (uint32_t i = 1; i < kReadCountMax; ++i) {
    while (readers[i]->Read(&piece)) {
    }
    EXPECT_FALSE(readers[i]->Finish().ok());
  }
}

TEST_F(ChunkReadTest, ADeadlineEndsARead) {
  StartHolder(64u << 20);
  const auto corpus = test::MakeTestCorpus(test::TestGeometry(), {48'000}, /*seed=*/5);
  ASSERT_TRUE(test::Put(holder(), corpus.geometry, corpus.chunks[0]).ok());
  Call call(std::chrono::milliseconds(300));
  const auto reader = holder().ReadChunk(call.get(), RequestFor(corpus, 0));
  v1::ReadChunkReply piece;
  ASSERT_TRUE(reader->Read(&piece));
  // Nothing is read until the deadline has passed, which Finish then reports.
  const Instant late = Clock::Real()->Now() + std::chrono::milliseconds(400);
  while (Clock::Real()->Now() < late) std::this_thread::yield();
  while (reader->Read(&piece)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  // The pin of the hot chunk ends with the call.
  const Instant deadline = Soon();
  uint32_t pins = 1;
  while (pins != 0 && Clock::Real()->Now() < deadline) {
    v1::ListChunksReply list;
    ASSERT_TRUE(holder().ListChunks(Call().get(), {}, &list).ok());
    pins = list.chunks(0).pin_count();
  }
  EXPECT_EQ(pins, 0u);
}

}  // namespace
}  // namespace ckv
