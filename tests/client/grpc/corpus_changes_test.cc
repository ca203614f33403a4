// Goal: a change whose answer was lost is made once, and is no error. An error about the change of
// somebody else stays one. Method: a fake directory makes a change, answers as a server that stops,
// and then refuses the same change.

#include "client/grpc/corpus_changes.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "proto/convert.h"
#include "tests/client/grpc/fake_directory.h"
#include "tests/support/soon.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

v1::PublishCorpusRequest RequestOf(uint32_t seed) {
  const auto chunks = test::MakeTestCorpus(test::TestGeometry(), {5, 6}, seed);
  v1::PublishCorpusRequest request;
  *request.mutable_corpus() = ToProto(chunks.Publish("docs", "", {{{"h0"}}, {{"h1"}}}));
  return request;
}

class CorpusChangesTest : public testing::Test {
 protected:
  CorpusChangesTest()
      : directory_(absl::StrCat(leader_.address(), ",", follower_.address()), Clock::Real()) {
    leader_.Lead();
    leader_.SetCorpus("");
    follower_.Follow(leader_.address());
    follower_.SetCorpus("");
  }

  absl::Status Publish(const v1::PublishCorpusRequest& request) {
    return PublishCorpus(directory_, request, &published_, test::Soon(), nullptr,
                         &answer_was_lost_);
  }
  absl::Status Drop() {
    v1::DropCorpusRequest request;
    request.set_name("docs");
    v1::DropCorpusReply reply;
    return DropCorpus(directory_, request, &reply, test::Soon(), nullptr, &answer_was_lost_);
  }

  test::FakeDirectory leader_, follower_;
  DirectoryCaller directory_;
  v1::PublishCorpusReply published_;
  bool answer_was_lost_ = false;
};

TEST_F(CorpusChangesTest, APublicationWhoseAnswerWasLostIsDone) {
  leader_.LoseNextAnswer();
  const absl::Status status = Publish(RequestOf(1));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(answer_was_lost_);
  EXPECT_EQ(published_.version(), 1u);
}

TEST_F(CorpusChangesTest, AReplacementWhoseAnswerWasLostIsDone) {
  ASSERT_TRUE(Publish(RequestOf(1)).ok());
  EXPECT_FALSE(answer_was_lost_);
  leader_.LoseNextAnswer();
  v1::PublishCorpusRequest request = RequestOf(2);
  request.set_replace(true);
  request.set_expected_version(1);
  const absl::Status status = Publish(request);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(answer_was_lost_);
  EXPECT_EQ(published_.version(), 2u);
}

TEST_F(CorpusChangesTest, AnotherPublicationIsNotTakenForIt) {
  ASSERT_TRUE(Publish(RequestOf(1)).ok());
  leader_.SetHook([](const grpc::ServerContext&, int call) {
    return call > 2 ? grpc::Status::OK : grpc::Status(grpc::StatusCode::CANCELLED, "stopping");
  });
  const absl::Status status = Publish(RequestOf(2));
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_FALSE(answer_was_lost_);
}

// The chunks are there, and another client's change of the policy came between.
TEST_F(CorpusChangesTest, APublicationIsNotDoneWithoutItsPolicy) {
  ASSERT_TRUE(Publish(RequestOf(1)).ok());
  leader_.SetHook([](const grpc::ServerContext&, int call) {
    return call > 2 ? grpc::Status::OK : grpc::Status(grpc::StatusCode::CANCELLED, "stopping");
  });
  v1::PublishCorpusRequest request = RequestOf(1);
  request.mutable_corpus()->mutable_policy()->set_ttl_ms(1000);
  const absl::Status status = Publish(request);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_FALSE(answer_was_lost_);
}

TEST_F(CorpusChangesTest, TheSamePublicationAgainIsRefused) {
  ASSERT_TRUE(Publish(RequestOf(1)).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Publish(RequestOf(1))));
}

TEST_F(CorpusChangesTest, ADropWhoseAnswerWasLostIsDone) {
  leader_.SetCorpus("docs");
  leader_.LoseNextAnswer();
  const absl::Status status = Drop();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(answer_was_lost_);
  EXPECT_TRUE(absl::IsNotFound(Drop()));
  EXPECT_FALSE(answer_was_lost_);
}

}  // namespace
}  // namespace ckv
