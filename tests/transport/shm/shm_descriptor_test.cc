// Goal: a shm peer that passes unrequested descriptors, too many of them, or none where it promised
// one costs itself the lane and us no descriptor.
// Method: one end of a lane, and the test as its peer: it writes the ring and the socket by hand.

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/files.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"
#include "transport/lane_memory.h"
#include "transport/shm/ring_lane.h"
#include "transport/slot_ring.h"
#include "transport/socket.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AwaitDown;
using test::AwaitReply;
using test::OpenFdCount;
using testing::HasSubstr;

constexpr LaneShape kRingShape = {4, 256, 256};

class ShmDescriptors : public testing::Test {
 public:
  ~ShmDescriptors() override {
    request_.reset();
    serve_.reset();
    end_.Reset();
    peer_.Reset();
    memory_.reset();
    EXPECT_EQ(OpenFdCount(), open_before_);
  }

 protected:
  ShmDescriptors() : open_before_(OpenFdCount()) {
    auto made = LaneMemory::Create(kRingShape);
    EXPECT_TRUE(made.ok()) << made.status();
    auto seen = LaneMemory::Adopt(UniqueFd(dup(made->fd())), kRingShape);
    EXPECT_TRUE(seen.ok()) << seen.status();
    view_ = std::make_unique<LaneMemory>(*std::move(seen));
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    end_ = UniqueFd(ends[0]);
    peer_ = UniqueFd(ends[1]);
    memory_ = std::make_shared<LaneMemory>(*std::move(made));
  }

  void Request() {
    request_ = NewRingRequestLane(FabricKind::kShm, memory_, std::move(end_));
    for (uint32_t i = 0; i < kRingShape.slot_count; ++i) {
      const std::optional<uint32_t> slot = request_->Acquire();
      EXPECT_EQ(slot, i);
      EXPECT_TRUE(request_->Post(*slot, 1).ok());
    }
  }
  // A byte of the socket with `fd_count` descriptors.
  bool Pass(uint8_t slot, size_t fd_count = 1) {
    const UniqueFd file = test::FileOf(std::to_string(slot));
    iovec part = {&slot, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    const std::vector<int> fds(fd_count, file.get());
    std::memcpy(CMSG_DATA(rights), fds.data(), fd_count * sizeof(int));
    return sendmsg(peer_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
  }
  void Reply(uint32_t slot, bool flagged) {
    view_->control()->replies.entries[reply_count_++] = std::bit_cast<uint64_t>(
        RingEntry{1, static_cast<uint16_t>(slot | (flagged ? kRingDescriptorFlag : 0)), 1});
  }
  // Expects the lane to go down with InvalidArgument and a message that contains `why`.
  void ExpectBroken(const char* why) {
    const absl::Status status = AwaitDown(*request_);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  const size_t open_before_;
  std::unique_ptr<LaneMemory> view_;
  std::shared_ptr<LaneMemory> memory_;
  UniqueFd end_, peer_;
  std::unique_ptr<RequestLane> request_;
  std::unique_ptr<ServeLane> serve_;
  size_t reply_count_ = 0;
};

TEST_F(ShmDescriptors, ByHand) {
  Request();
  const std::string bells(100, '\3');  // more than one read takes, and the number of a slot
  ASSERT_EQ(send(peer_.get(), bells.data(), bells.size(), 0), 100);
  ASSERT_TRUE(Pass(2));
  ASSERT_EQ(send(peer_.get(), bells.data(), 1, 0), 1);
  ASSERT_TRUE(Pass(1));
  Reply(2, true);
  Reply(0, false);
  Reply(1, true);
  for (const uint32_t slot : {2u, 0u, 1u}) {
    const std::optional<Completion> done = AwaitReply(*request_);
    ASSERT_TRUE(done.has_value()) << request_->status();
    EXPECT_EQ(done->slot, slot);
    const absl::StatusOr<UniqueFd> file = request_->TakeDescriptor(slot);
    ASSERT_EQ(file.ok(), slot != 0) << file.status();
    if (file.ok()) {
      EXPECT_EQ(test::TextOf(file->get()), std::to_string(slot));
    }
  }
}

TEST_F(ShmDescriptors, PromisedAndNotPassed) {
  Request();
  Reply(1, true);
  ExpectBroken("promised a descriptor");
}

TEST_F(ShmDescriptors, RejectsADescriptorOfAnotherSlot) {
  Request();
  ASSERT_TRUE(Pass(2));
  Reply(1, true);
  ExpectBroken("promised a descriptor");
}

TEST_F(ShmDescriptors, FlaggedAndOutOfRange) {
  Request();
  ASSERT_TRUE(Pass(kRingShape.slot_count));
  Reply(kRingShape.slot_count, true);
  ExpectBroken("slot 4 of 4");
}

TEST_F(ShmDescriptors, SeveralAtOnce) {
  for (const size_t count : {size_t{2}, size_t{8}}) {
    auto lane = NewRingRequestLane(FabricKind::kShm, memory_, UniqueFd(dup(end_.get())));
    ASSERT_TRUE(Pass(0, count));
    lane->Disarm();  // looks at the socket
    EXPECT_EQ(lane->status().code(), StatusCode::kInvalidArgument);
    if (count == 2) {  // the broken lane has shut the pair down: a fresh one
      int ends[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
      end_ = UniqueFd(ends[0]);
      peer_ = UniqueFd(ends[1]);
    }
  }
}

// Strays wait for replies that never arrive; one more than there are slots ends the lane.
TEST_F(ShmDescriptors, MoreThanSlots) {
  Request();
  for (uint32_t i = 0; i < kRingShape.slot_count; ++i) ASSERT_TRUE(Pass(0));
  request_->Disarm();
  EXPECT_TRUE(request_->status().ok());
  ASSERT_TRUE(Pass(0));
  ExpectBroken("at once, 4 before them wait");
}

TEST_F(ShmDescriptors, TheHolderTakesNone) {
  serve_ = NewRingServeLane(FabricKind::kShm, memory_, std::move(end_));
  const size_t open = OpenFdCount();
  for (int i = 0; i < 1000; ++i) {
    while (!Pass(0, 3)) serve_->Disarm();  // looks at the socket
  }
  serve_->Disarm();
  EXPECT_TRUE(serve_->status().ok());
  EXPECT_EQ(OpenFdCount(), open);
}

// The flag is the requester's to read: in a request it is a slot out of range.
TEST_F(ShmDescriptors, RequestsAreNotFlagged) {
  serve_ = NewRingServeLane(FabricKind::kShm, memory_, std::move(end_));
  view_->control()->requests.entries[0] =
      std::bit_cast<uint64_t>(RingEntry{1, 1 | kRingDescriptorFlag, 1});
  EXPECT_EQ(AwaitDown(*serve_).code(), StatusCode::kInvalidArgument);
}

// A full socket: the reply can still be posted without a descriptor.
TEST_F(ShmDescriptors, DoesNotPostWhatDoesNotFit) {
  serve_ = NewRingServeLane(FabricKind::kShm, memory_, std::move(end_));
  view_->control()->requests.entries[0] = std::bit_cast<uint64_t>(RingEntry{1, 0, 1});
  ASSERT_TRUE(test::AwaitRequest(*serve_).has_value());
  const UniqueFd file = test::FileOf("x");
  const std::string bells(4096, 'b');
  const int same = serve_->event_fd();
  while (send(same, bells.data(), bells.size(), MSG_DONTWAIT) > 0) {
  }
  while (send(same, bells.data(), 1, MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(serve_->PostWithDescriptor(0, 1, file.get()).code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(serve_->Post(0, 1).ok());
}

// Out of descriptors, the reply arrives without its own, and the lane continues.
TEST_F(ShmDescriptors, NoRoomForOneMore) {
  Request();
  ASSERT_TRUE(Pass(0));
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd lowest_free(dup(peer_.get()));
  const rlimit none = {static_cast<rlim_t>(lowest_free.get()), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  Reply(0, true);
  const std::optional<Completion> done = AwaitReply(*request_);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(done.has_value()) << request_->status();
  EXPECT_EQ(request_->TakeDescriptor(0).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(Pass(1));
  Reply(1, true);
  ASSERT_TRUE(AwaitReply(*request_).has_value());
  EXPECT_TRUE(request_->TakeDescriptor(1).ok());
}

}  // namespace
}  // namespace ckv
