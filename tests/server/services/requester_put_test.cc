// Goal: what a frontend puts by messages alone is attended as what a load puts, and a stream that
// is wrong or breaks changes nothing.

#include <string>
#include <vector>

#include "tests/server/services/services_fixture.h"

namespace ckv::test {
namespace {

using testing::HasSubstr;

v1::PutRequest TargetOf(const TestCorpus& corpus, bool create = true) {
  v1::PutRequest message;
  message.mutable_target()->set_corpus("docs");
  message.mutable_target()->set_create(create);
  if (create) *message.mutable_target()->mutable_geometry() = ToProto(corpus.geometry);
  return message;
}

v1::PutRequest ChunkOf(const TestChunk& chunk) {
  v1::PutRequest message;
  message.mutable_chunk()->set_token_ids(Int32sToBytes(chunk.info.token_ids));
  return message;
}

v1::PutRequest PutRowsOf(const TestChunk& chunk, uint32_t layer) {
  const auto bytes = std::as_bytes(std::span(chunk.layers[layer]));
  v1::PutRequest message;
  message.mutable_rows()->set_layer(layer);
  message.mutable_rows()->set_rows(bytes.data(), bytes.size());
  return message;
}

class RequesterPutTest : public ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(2);
    StartRequester();
  }
  // The layers from the last to the first.
  std::vector<v1::PutRequest> Messages(std::initializer_list<size_t> chunks, bool create = true) {
    std::vector<v1::PutRequest> messages = {TargetOf(corpus_, create)};
    for (const size_t i : chunks) {
      messages.push_back(ChunkOf(corpus_.chunks[i]));
      for (uint32_t layer = corpus_.geometry.layers; layer-- > 0;) {
        messages.push_back(PutRowsOf(corpus_.chunks[i], layer));
      }
    }
    return messages;
  }
  grpc::Status Put(const std::vector<v1::PutRequest>& messages, v1::PutReply* reply = nullptr,
                   bool cancel = false) {
    Call call;
    v1::PutReply unread;
    const auto writer = requester_stub_->Put(call.get(), reply == nullptr ? &unread : reply);
    for (const v1::PutRequest& message : messages) {
      if (!writer->Write(message)) break;
    }
    if (cancel) {
      // The server reads what was written while it answers this.
      v1::ResolveReply none;
      v1::ResolveRequest other;
      other.set_corpus("none");
      EXPECT_FALSE(requester_stub_->Resolve(Call().get(), other, &none).ok());
      call.get()->TryCancel();
    } else {
      writer->WritesDone();
    }
    return writer->Finish();
  }
  void ExpectRefused(const std::vector<v1::PutRequest>& messages, grpc::StatusCode code,
                     const std::string& text) {
    const grpc::Status status = Put(messages);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(text));
  }

  TestCorpus corpus_ = MakeTestCorpus(TestGeometry(), {40, 9, 130}, 3);
};

TEST_F(RequesterPutTest, AChainInTwoStreams) {
  v1::PutReply first, second;
  const grpc::Status put = Put(Messages({0, 1}), &first);
  ASSERT_TRUE(put.ok()) << put.error_message();
  EXPECT_EQ(first.ids(1), corpus_.chunks[1].info.id.AsBytes());
  EXPECT_EQ(first.added_count(), 2u);
  EXPECT_EQ(first.bytes_sent(), 49 * corpus_.geometry.token_bytes());
  auto more = Messages({2}, /*create=*/false);
  more[0].mutable_target()->set_parent(first.ids(1));
  ASSERT_TRUE(Put(more, &second).ok());
  EXPECT_EQ(second.ids(0), corpus_.chunks[2].info.id.AsBytes());
  EXPECT_EQ(second.chunk_begin(), 2u);
  std::mt19937 rng(5);
  const std::vector<uint16_t> q = RandomBf16(corpus_.geometry.d_qk, rng);
  v1::AttendReply reply;
  ASSERT_TRUE(Attend(AttendOf("docs", 2, q, corpus_.geometry.d_qk), &reply).ok());
  const auto due = Reference(corpus_.geometry, q, corpus_.Rows(2));
  const auto* o = reinterpret_cast<const float*>(reply.o().data());
  for (size_t i = 0; i < due.o.size(); ++i) ASSERT_NEAR(o[i], due.o[i], 1e-3);
}

// A caller that had no reply sends the same messages.
TEST_F(RequesterPutTest, ARepeatedPutChangesNothing) {
  v1::PutReply first, again, grown;
  ASSERT_TRUE(Put(Messages({0, 1}), &first).ok());
  ASSERT_TRUE(Put(Messages({0, 1}), &again).ok());
  EXPECT_EQ(again.added_count(), 0u);
  EXPECT_EQ(again.version(), first.version());
  EXPECT_EQ(again.ids(1), first.ids(1));
  EXPECT_TRUE(first.kept() && again.kept());
  auto more = Messages({2}, /*create=*/false);
  more[0].mutable_target()->set_parent(first.ids(1));
  ASSERT_TRUE(Put(more).ok());
  ASSERT_TRUE(Put(more, &grown).ok());
  EXPECT_EQ(grown.added_count(), 0u);
  EXPECT_EQ(grown.chunk_begin(), 3u);
  EXPECT_EQ(StatsOf(0).chunk_count() + StatsOf(1).chunk_count(), 3u);
}

TEST_F(RequesterPutTest, AChainContinuesFromAStoredChunk) {
  auto messages = Messages({0});
  messages[0].mutable_target()->set_parent(std::string(corpus_.chunks[2].info.id.AsBytes()));
  ExpectRefused(messages, grpc::StatusCode::FAILED_PRECONDITION, "not there yet");
  ASSERT_TRUE(Put(Messages({0})).ok());
  ExpectRefused(messages, grpc::StatusCode::FAILED_PRECONDITION, "has no chunk");
  messages[0].mutable_target()->set_parent("short");
  ExpectRefused(messages, grpc::StatusCode::INVALID_ARGUMENT, "");
  // Another chunk behind the same one.
  auto next = Messages({1}, /*create=*/false), fork = Messages({2}, /*create=*/false);
  const std::string parent(corpus_.chunks[0].info.id.AsBytes());
  next[0].mutable_target()->set_parent(parent);
  fork[0].mutable_target()->set_parent(parent);
  ASSERT_TRUE(Put(next).ok());
  ExpectRefused(fork, grpc::StatusCode::FAILED_PRECONDITION, "another chunk behind");
}

TEST_F(RequesterPutTest, MessagesOutOfPlace) {
  const auto all = Messages({0});
  ExpectRefused({}, grpc::StatusCode::INVALID_ARGUMENT, "without a target");
  ExpectRefused({all[1]}, grpc::StatusCode::INVALID_ARGUMENT, "a chunk without a target");
  ExpectRefused({all[0], all[0]}, grpc::StatusCode::INVALID_ARGUMENT, "a second target");
  ExpectRefused({all[0], all[2]}, grpc::StatusCode::INVALID_ARGUMENT, "rows without a chunk");
  ExpectRefused({all[0], all[1], all[2], all[2]}, grpc::StatusCode::INVALID_ARGUMENT, "are due");
  ExpectRefused({all[0], all[1], all[2]}, grpc::StatusCode::FAILED_PRECONDITION, "is not whole");
  v1::PutRequest nothing = all[2];
  nothing.mutable_rows()->clear_rows();
  ExpectRefused({all[0], all[1], nothing}, grpc::StatusCode::INVALID_ARGUMENT, "without rows");
  ExpectRefused({all[0], v1::PutRequest()}, grpc::StatusCode::INVALID_ARGUMENT, "empty message");
  v1::PutRequest target = all[0];
  target.mutable_target()->clear_geometry();
  ExpectRefused({target}, grpc::StatusCode::INVALID_ARGUMENT, "needs a geometry");
  target.mutable_target()->set_create(false);
  ExpectRefused({target}, grpc::StatusCode::NOT_FOUND, "docs");
  v1::PutRequest chunk = all[1];
  chunk.mutable_chunk()->set_token_ids("abc");
  ExpectRefused({all[0], chunk}, grpc::StatusCode::INVALID_ARGUMENT, "");
  EXPECT_EQ(StatsOf(0).chunk_count() + StatsOf(1).chunk_count(), 0u);
}

TEST_F(RequesterPutTest, ManyTokensNeedRoom) {
  TestCorpus wide = corpus_;
  wide.geometry.layers = 61;
  wide.geometry.d_qk = 576;
  wide.geometry.d_v = 512;
  wide.geometry.d_rope = 64;
  v1::PutRequest chunk;
  chunk.mutable_chunk()->set_token_ids(std::string(4 * 20'000, 'x'));  // 1.4 GB of rows
  ExpectRefused({TargetOf(wide), chunk}, grpc::StatusCode::RESOURCE_EXHAUSTED,
                "put fewer chunks at once");
}

// The chunks are whole when the stream breaks: only its end is missing. The requester ends before
// anything is looked at, so that none of its calls is still under way.
TEST_F(RequesterPutTest, AStreamThatBreaksChangesNothing) {
  for (int i = 0; i < 20; ++i) {
    const grpc::Status broken = Put(Messages({0, 1}), nullptr, /*cancel=*/true);
    ASSERT_EQ(broken.error_code(), grpc::StatusCode::CANCELLED) << broken.error_message();
  }
  requester_.reset();
  EXPECT_EQ(StatsOf(0).chunk_count() + StatsOf(1).chunk_count(), 0u);
  StartRequester();
  ExpectRefused({TargetOf(corpus_, false)}, grpc::StatusCode::NOT_FOUND, "docs");
  ASSERT_TRUE(Put(Messages({0, 1})).ok());
}

}  // namespace
}  // namespace ckv::test
