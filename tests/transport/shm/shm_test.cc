// Goal: a shm peer that scribbles over the shared memory, or passes other memory than agreed, costs
// itself the lane and us nothing.
// Method: map the region a second time, as the peer's process would, and corrupt what is in it;
// build regions with the wrong seals or size by hand.

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/lane_pair.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/lane_memory.h"
#include "transport/shm/ring_lane.h"
#include "transport/shm/shm_peer.h"
#include "transport/slot_ring.h"
#include "transport/socket.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AwaitDown;
using test::AwaitReply;
using test::AwaitRequest;
using test::LanePair;
using test::Soon;

constexpr LaneShape kShmShape = {4, 256, 256};

// A lane over one region, and the peer's own view of that region.
struct Scribbled {
  Scribbled() {
    auto made = LaneMemory::Create(kShmShape);
    EXPECT_TRUE(made.ok()) << made.status();
    auto seen = LaneMemory::Adopt(UniqueFd(dup(made->fd())), kShmShape);
    EXPECT_TRUE(seen.ok()) << seen.status();
    auto mapped = LaneMemory::Adopt(UniqueFd(dup(made->fd())), kShmShape);
    EXPECT_TRUE(mapped.ok()) << mapped.status();
    control = mapped->control();
    view = std::make_unique<LaneMemory>(*std::move(mapped));
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    request = NewRingRequestLane(FabricKind::kShm, std::make_shared<LaneMemory>(*std::move(seen)),
                                 UniqueFd(ends[0]));
    serve = NewRingServeLane(FabricKind::kShm, std::make_shared<LaneMemory>(*std::move(made)),
                             UniqueFd(ends[1]));
  }
  static uint64_t Entry(uint32_t slot, uint32_t bytes, uint16_t lap) {
    return std::bit_cast<uint64_t>(RingEntry{bytes, static_cast<uint16_t>(slot), lap});
  }

  std::unique_ptr<LaneMemory> view;
  ControlMemory* control = nullptr;
  std::unique_ptr<RequestLane> request;
  std::unique_ptr<ServeLane> serve;
};

TEST(ShmScribble, RequestsOutOfRangeBreakTheLane) {
  const uint64_t bad[] = {Scribbled::Entry(kShmShape.slot_count, 1, 1),
                          Scribbled::Entry(0xffff, 1, 1),
                          Scribbled::Entry(0, kShmShape.request_bytes_max + 1, 1),
                          Scribbled::Entry(0, 0xffffffff, 1),
                          Scribbled::Entry(0, 1, 2),
                          Scribbled::Entry(0, 1, 0xffff)};
  for (uint64_t entry : bad) {
    Scribbled lane;
    lane.control->requests.entries[0] = entry;
    EXPECT_EQ(AwaitDown(*lane.serve).code(), StatusCode::kInvalidArgument) << entry;
    // The other end notices it.
    EXPECT_EQ(AwaitDown(*lane.request).code(), StatusCode::kUnavailable);
  }
}

TEST(ShmScribble, RepliesOutOfTurnBreakTheLane) {
  const uint64_t bad[] = {Scribbled::Entry(kShmShape.slot_count, 1, 1),
                          Scribbled::Entry(0, kShmShape.reply_bytes_max + 1, 1),
                          Scribbled::Entry(3, 1, 1),  // never posted
                          Scribbled::Entry(0, 1, 7)};
  for (uint64_t entry : bad) {
    Scribbled lane;
    const std::optional<uint32_t> slot = lane.request->Acquire();
    ASSERT_EQ(slot, 0u);
    ASSERT_TRUE(lane.request->Post(*slot, 1).ok());
    lane.control->replies.entries[0] = entry;
    EXPECT_EQ(AwaitDown(*lane.request).code(), StatusCode::kInvalidArgument) << entry;
  }
}

TEST(ShmScribble, OneSlotTwiceBreaksTheLane) {
  Scribbled lane;
  lane.control->requests.entries[0] = Scribbled::Entry(2, 1, 1);
  lane.control->requests.entries[1] = Scribbled::Entry(2, 1, 1);
  const std::optional<Arrival> arrival = AwaitRequest(*lane.serve);
  ASSERT_TRUE(arrival.has_value());
  EXPECT_EQ(AwaitDown(*lane.serve).code(), StatusCode::kInvalidArgument);
}

// A peer that keeps writing random words everywhere in the control page, while both ends work.
TEST(ShmScribble, RandomWordsNeverCrash) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    Scribbled lane;
    auto* words = reinterpret_cast<std::atomic<uint32_t>*>(lane.control);
    for (int step = 0; step < 60; ++step) {
      const size_t word = rng() % (sizeof(ControlMemory) / sizeof(uint32_t));
      // Small values hit valid slots and laps more often than random ones.
      words[rng() % 2 == 0 ? word : 16 + rng() % 4] = rng() % 2 == 0 ? rng() : rng() % 8;
      if (const std::optional<uint32_t> slot = lane.request->Acquire()) {
        (void)lane.request->Post(*slot, rng() % 257);
      }
      Arrival arrival;
      if (lane.serve->Poll({&arrival, 1}) == 1) {
        ASSERT_LT(arrival.slot, kShmShape.slot_count);
        ASSERT_LE(arrival.bytes, kShmShape.request_bytes_max);
        (void)lane.serve->Post(arrival.slot, 1);
      }
      Completion completion;
      if (lane.request->Poll({&completion, 1}) == 1) {
        ASSERT_LT(completion.slot, kShmShape.slot_count);
        ASSERT_LE(completion.bytes, kShmShape.reply_bytes_max);
        lane.request->Release(completion.slot);
      }
      if (lane.serve->Arm()) lane.serve->Disarm();
      if (lane.request->Arm()) lane.request->Disarm();
    }
    for (const absl::Status& status : {lane.request->status(), lane.serve->status()}) {
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument ||
                  status.code() == StatusCode::kUnavailable)
          << status;
    }
  }
}

// A peer that fills our doorbell only causes useless wake-ups, and its end is still noticed.
TEST(ShmScribble, DoorbellFloodHidesNothing) {
  auto made = LaneMemory::Create(kShmShape);
  ASSERT_TRUE(made.ok());
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  UniqueFd peer(ends[1]);
  auto lane = NewRingServeLane(FabricKind::kShm, std::make_shared<LaneMemory>(*std::move(made)),
                               UniqueFd(ends[0]));
  const std::string bells(4096, 'b');
  while (send(peer.get(), bells.data(), bells.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_TRUE(lane->Arm());
  lane->Disarm();
  peer.Reset();
  EXPECT_EQ(AwaitDown(*lane).code(), StatusCode::kUnavailable);
}

TEST(ShmMemory, ThePeersRegionMustBeSealedAndOfTheRightSize) {
  const off_t bytes = static_cast<off_t>(LayOutSlots(kShmShape, kControlBytes).total_bytes);
  const auto make = [&](off_t size, int seals) {
    UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), size), 0);
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
    return LaneMemory::Adopt(std::move(fd), kShmShape).status().code();
  };
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  EXPECT_EQ(make(bytes, kAll), StatusCode::kOk);
  EXPECT_EQ(make(bytes, F_SEAL_SHRINK | F_SEAL_GROW), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(bytes, F_SEAL_GROW | F_SEAL_SEAL), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(bytes, F_SEAL_SHRINK), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(bytes - 4096, kAll), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(bytes + 4096, kAll), StatusCode::kInvalidArgument);
  EXPECT_EQ(make(0, kAll), StatusCode::kInvalidArgument);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  UniqueFd write_end(pipe_ends[1]);
  EXPECT_EQ(LaneMemory::Adopt(UniqueFd(pipe_ends[0]), kShmShape).status().code(),
            StatusCode::kInvalidArgument);
}

// Right in seals and size, but of huge pages that the machine may not have: a touch would end us.
TEST(ShmMemory, ThePeersRegionMustBeOfOrdinaryPages) {
  constexpr uint32_t kHugePage = 2u << 20;
  const LaneShape shape = {1, kHugePage - kControlBytes - 4096, 4096};
  ASSERT_EQ(LayOutSlots(shape, kControlBytes).total_bytes, kHugePage);
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!fd.valid())
    GTEST_SKIP() << "this kernel has no huge pages: " << std::strerror(errno)
                 << "; to run it: a kernel with huge pages";
  ASSERT_EQ(ftruncate(fd.get(), kHugePage), 0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(LaneMemory::Adopt(std::move(fd), shape).status().code(), StatusCode::kInvalidArgument);
}

// Sealed against us: it cannot be mapped to be written.
TEST(ShmMemory, ReadOnlyRegionsAreRefused) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(
      ftruncate(fd.get(), static_cast<off_t>(LayOutSlots(kShmShape, kControlBytes).total_bytes)),
      0);
  ASSERT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE),
            0);
  EXPECT_FALSE(LaneMemory::Adopt(std::move(fd), kShmShape).ok());
}

TEST(ShmMemory, OursCannotBeResized) {
  const auto made = LaneMemory::Create(kShmShape);
  ASSERT_TRUE(made.ok());
  EXPECT_NE(ftruncate(made->fd(), 0), 0);
  EXPECT_NE(ftruncate(made->fd(), static_cast<off_t>(made->total_bytes()) * 2), 0);
  EXPECT_NE(fcntl(made->fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(ShmMemory, SlotsDoNotOverlap) {
  const LaneShape shape = {5, 65, 4097};
  const auto made = LaneMemory::Create(shape);
  ASSERT_TRUE(made.ok());
  const std::byte* end = reinterpret_cast<std::byte*>(made->control()) + kControlBytes;
  for (uint32_t i = 0; i < 10; ++i) {
    const std::span<std::byte> buffer = i < 5 ? made->request(i) : made->reply(i - 5);
    EXPECT_GE(buffer.data(), end);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    end = buffer.data() + buffer.size();
  }
  EXPECT_LE(end, reinterpret_cast<std::byte*>(made->control()) + made->total_bytes());
}

TEST(ShmPeer, OnlyTheSameUser) {
  EXPECT_TRUE(CheckPeerUser(1000, 1000).ok());
  EXPECT_EQ(CheckPeerUser(1001, 1000).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(CheckPeerUser(0, 1000).code(), StatusCode::kPermissionDenied);
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd a(ends[0]), b(ends[1]);
  EXPECT_TRUE(CheckPeerOf(a.get()).ok());
  EXPECT_EQ(CheckPeerOf(-1).code(), StatusCode::kPermissionDenied);
}

// A child of another user, with a good invitation, dials; then with a dialer that does not check
// the peer.
TEST(ShmPeer, BothEndsRefuseAnotherUser) {
  if (geteuid() != 0)
    GTEST_SKIP() << "only root can become another user; to run it: the same as root";
  constexpr uid_t kNobody = 65'534;
  auto fabric = NewShmFabric(Clock::Real());
  auto listener = fabric->Listen({});
  ASSERT_TRUE(listener.ok());
  auto dialer = fabric->Dial(kShmShape);
  ASSERT_TRUE(dialer.ok());
  const auto answer = (*listener)->Invite((*dialer)->offer(), kShmShape, "", 1, Soon());
  ASSERT_TRUE(answer.ok());
  const auto where = DecodeAnswer(FabricKind::kShm, *answer);
  ASSERT_TRUE(where.ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    // The dialer's check.
    if ((*dialer)->Connect(*answer, Soon()).status().code() != StatusCode::kPermissionDenied) {
      _exit(2);
    }
    // And the holder's: a dialer that does not check, with the right token.
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, where->address.data(), where->address.size());
    const auto bytes =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + where->address.size());
    if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0) _exit(3);
    HelloFrame hello;
    hello.invitation = where->key.id;
    hello.token = where->key.token;
    if (!SendAll(fd.get(), BytesOf(hello), *Clock::Real(), Soon()).ok()) _exit(4);
    WelcomeFrame welcome;
    auto memory = ReceiveAllWithFd(fd.get(), WritableBytesOf(welcome), *Clock::Real(), Soon());
    _exit(memory.status().code() == StatusCode::kUnavailable ? 0 : 5);
  }
  int status = 0;
  const Instant deadline = Soon();
  while (waitpid(child, &status, WNOHANG) == 0 && Clock::Real()->Now() < deadline) {
    (void)test::WaitReadable((*listener)->event_fd(), std::chrono::milliseconds(10));
    EXPECT_FALSE((*listener)->Accept().has_value());
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  // The stranger has not used the invitation up.
  std::vector<AcceptedLane> accepted;
  EXPECT_TRUE(test::ConnectBeside(**dialer, *answer, **listener, &accepted).ok());
}

TEST(ShmFabric, OtherHostsAreUnavailable) {
  auto fabric = NewShmFabric(Clock::Real());
  auto listener = fabric->Listen({});
  ASSERT_TRUE(listener.ok());
  const std::string offer = EncodeOffer(FabricKind::kShm, "another host");
  EXPECT_EQ((*listener)->Invite(offer, kShmShape, "", 1, Soon()).status().code(),
            StatusCode::kUnavailable);
}

TEST(ShmFabric, AnswersNameOnlyListenersOfOurs) {
  auto fabric = NewShmFabric(Clock::Real());
  for (const char* address : {"", "dbus", "ckv-shm-../../etc", "ckv-shm-"}) {
    auto dialer = fabric->Dial(kShmShape);
    ASSERT_TRUE(dialer.ok());
    const std::string answer = EncodeAnswer(FabricKind::kShm, {RandomInvitationKey(), address});
    EXPECT_EQ((*dialer)->Connect(answer, Soon()).status().code(), StatusCode::kInvalidArgument);
  }
  auto dialer = fabric->Dial(kShmShape);
  ASSERT_TRUE(dialer.ok());
  const std::string nobody = EncodeAnswer(
      FabricKind::kShm, {RandomInvitationKey(), "ckv-shm-0123456789abcdef0123456789abcdef"});
  EXPECT_EQ((*dialer)->Connect(nobody, Soon()).status().code(), StatusCode::kUnavailable);
}

// A holder in another process, killed: the requester notices it both asleep and spinning.
TEST(ShmFabric, KilledPeerIsNoticed) {
  for (const bool sleeping : {true, false}) {
    auto made = LaneMemory::Create(kShmShape);
    ASSERT_TRUE(made.ok());
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[0]);
      pause();
      _exit(0);
    }
    close(ends[1]);
    auto lane = NewRingRequestLane(FabricKind::kShm, std::make_shared<LaneMemory>(*std::move(made)),
                                   UniqueFd(ends[0]));
    Completion completion;
    for (int i = 0; i < 10'000; ++i) EXPECT_EQ(lane->Poll({&completion, 1}), 0u);
    EXPECT_TRUE(lane->status().ok());
    EXPECT_TRUE(!sleeping || lane->Arm());
    ASSERT_EQ(kill(child, SIGKILL), 0);
    if (sleeping) {
      EXPECT_TRUE(test::WaitReadable(lane->event_fd()));
      lane->Disarm();
    }
    const Instant deadline = Soon();
    while (lane->status().ok() && Clock::Real()->Now() < deadline) {
      EXPECT_EQ(lane->Poll({&completion, 1}), 0u);
    }
    EXPECT_EQ(lane->status().code(), StatusCode::kUnavailable);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }
}

// The ring's laps wrap after 2^16 x 256 messages; run it past that by its own two ends.
TEST(SlotRing, LapsWrap) {
  RingMemory ring{};
  RingWriter writer(&ring);
  RingReader reader(&ring);
  constexpr uint64_t kMessageCount = uint64_t{kRingEntryCount} * 65'536 + 1000;
  RingEntry entry;
  for (uint64_t i = 0; i < kMessageCount; ++i) {
    writer.Write(static_cast<uint32_t>(i % 4), static_cast<uint32_t>(i));
    ASSERT_EQ(reader.Read(entry), RingReader::Look::kEntry) << "message " << i;
    ASSERT_EQ(entry.bytes, static_cast<uint32_t>(i));
    ASSERT_EQ(reader.Peek(entry), RingReader::Look::kEmpty) << "message " << i;
  }
}

TEST(SlotRing, WakesOnceASleep) {
  RingMemory ring{};
  RingWriter writer(&ring);
  RingReader reader(&ring);
  RingEntry entry;
  EXPECT_FALSE(writer.Write(0, 0));  // no reader sleeps
  EXPECT_FALSE(reader.Arm());        // something is there
  EXPECT_FALSE(writer.Write(0, 0));  // and nothing stayed armed
  while (reader.Read(entry) == RingReader::Look::kEntry) {
  }
  EXPECT_TRUE(reader.Arm());
  EXPECT_TRUE(writer.Write(0, 0));
  EXPECT_FALSE(writer.Write(0, 0));
}

}  // namespace
}  // namespace ckv
