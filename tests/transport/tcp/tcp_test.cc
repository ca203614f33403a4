// Goal: whatever a tcp peer sends, in whatever pieces, ends in whole frames or in a broken lane.
// Method: a raw socket plays the peer: it does the handshake by hand, then sends malformed frames,
// single bytes, or nothing.

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/transport/lane_pair.h"
#include "transport/acceptor.h"
#include "transport/fabric.h"
#include "transport/handshake.h"
#include "transport/socket.h"
#include "transport/tcp/tcp_connection.h"
#include "transport/tcp/tcp_lane.h"

namespace ckv {
namespace {

using absl::StatusCode;
using test::AcceptOne;
using test::AwaitDown;
using test::AwaitReply;
using test::AwaitRequest;
using test::FillPattern;
using test::HasPattern;
using test::Soon;
using testing::HasSubstr;

constexpr LaneShape kShape = {4, 10'000, 20'000};

UniqueFd ConnectRaw(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  EXPECT_EQ(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr), 1);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

void SendRaw(const UniqueFd& fd, std::span<const std::byte> bytes) {
  ASSERT_TRUE(SendAll(fd.get(), bytes, *Clock::Real(), Soon()).ok());
}

// Whether the other end hung up, within the patience.
bool HungUp(const UniqueFd& fd) {
  std::byte byte;
  return !ReceiveAll(fd.get(), {&byte, 1}, *Clock::Real(), Soon()).ok();
}

class TcpListenerTest : public testing::Test {
 protected:
  TcpListenerTest() : fabric_(NewTcpFabric(&clock_)) {
    auto listener = fabric_->Listen({});
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  Answer Invite(uint64_t tag = 1) {
    auto dialer = fabric_->Dial(kShape);
    EXPECT_TRUE(dialer.ok());
    const auto answer = listener_->Invite((*dialer)->offer(), kShape, "", tag,
                                          clock_.Now() + std::chrono::minutes(1));
    EXPECT_TRUE(answer.ok()) << answer.status();
    const auto decoded = DecodeAnswer(FabricKind::kTcp, *answer);
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    return *decoded;
  }
  static HelloFrame HelloOf(const Answer& answer) {
    HelloFrame hello;
    hello.invitation = answer.key.id;
    hello.token = answer.key.token;
    return hello;
  }
  // Accepts until the listener has seen what is there; expects no lane.
  void ExpectNoLane() {
    (void)test::WaitReadable(listener_->event_fd(), std::chrono::milliseconds(200));
    EXPECT_FALSE(listener_->Accept().has_value());
  }

  ManualClock clock_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Listener> listener_;
};

TEST_F(TcpListenerTest, HelloByteByByte) {
  const Answer answer = Invite(42);
  UniqueFd peer = ConnectRaw(answer.address);
  const HelloFrame hello = HelloOf(answer);
  const std::span<const std::byte> bytes = BytesOf(hello);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_FALSE(listener_->Accept().has_value());
    SendRaw(peer, bytes.subspan(i, 1));
  }
  const std::optional<AcceptedLane> lane = AcceptOne(*listener_);
  ASSERT_TRUE(lane.has_value());
  EXPECT_EQ(lane->tag, 42u);
  WelcomeFrame welcome;
  ASSERT_TRUE(ReceiveAll(peer.get(), WritableBytesOf(welcome), *Clock::Real(), Soon()).ok());
  EXPECT_TRUE(CheckWelcome(welcome, kShape).ok());
}

TEST_F(TcpListenerTest, GarbageIsDropped) {
  const Answer answer = Invite();
  std::mt19937 rng(1);
  for (int i = 0; i < 20; ++i) {
    UniqueFd peer = ConnectRaw(answer.address);
    std::vector<std::byte> garbage(32 + rng() % 1000);
    for (std::byte& b : garbage) b = static_cast<std::byte>(rng());
    SendRaw(peer, garbage);
    ExpectNoLane();
    EXPECT_TRUE(HungUp(peer));
  }
  UniqueFd http = ConnectRaw(answer.address);
  const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  SendRaw(http, std::as_bytes(std::span(text)));
  ExpectNoLane();
  EXPECT_TRUE(HungUp(http));
}

TEST_F(TcpListenerTest, TokensAreNotGuessed) {
  const Answer answer = Invite();
  for (int bit = 0; bit < 128; bit += 9) {
    HelloFrame hello = HelloOf(answer);
    hello.token[static_cast<size_t>(bit) / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    UniqueFd peer = ConnectRaw(answer.address);
    SendRaw(peer, BytesOf(hello));
    ExpectNoLane();
    EXPECT_TRUE(HungUp(peer));
  }
  HelloFrame old = HelloOf(answer);
  old.version = kHandshakeVersion + 1;
  UniqueFd peer = ConnectRaw(answer.address);
  SendRaw(peer, BytesOf(old));
  ExpectNoLane();
  EXPECT_TRUE(HungUp(peer));
  UniqueFd good = ConnectRaw(answer.address);
  const HelloFrame hello = HelloOf(answer);
  SendRaw(good, BytesOf(hello));
  EXPECT_TRUE(AcceptOne(*listener_).has_value());
}

TEST_F(TcpListenerTest, HalfAHelloIsDroppedInTime) {
  const Answer answer = Invite();
  const HelloFrame hello = HelloOf(answer);
  UniqueFd half = ConnectRaw(answer.address);
  SendRaw(half, BytesOf(hello).first(16));
  UniqueFd silent = ConnectRaw(answer.address);
  ExpectNoLane();
  clock_.Advance(kHandshakeMax - std::chrono::milliseconds(1));
  EXPECT_FALSE(listener_->Accept().has_value());
  // Meanwhile they do not block others.
  UniqueFd good = ConnectRaw(answer.address);
  SendRaw(good, BytesOf(hello));
  EXPECT_TRUE(AcceptOne(*listener_).has_value());
  clock_.Advance(std::chrono::milliseconds(2));
  EXPECT_FALSE(listener_->Accept().has_value());
  EXPECT_TRUE(HungUp(half));
  EXPECT_TRUE(HungUp(silent));
}

TEST_F(TcpListenerTest, HalfOpenConnectionsAreBounded) {
  const Answer answer = Invite();
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < kPendingHandshakeCountMax + 10; ++i) {
    silent.push_back(ConnectRaw(answer.address));
    EXPECT_FALSE(listener_->Accept().has_value());
  }
  for (size_t i = 0; i < 10; ++i) EXPECT_TRUE(HungUp(silent[i])) << i;  // the oldest
  UniqueFd good = ConnectRaw(answer.address);
  const HelloFrame hello = HelloOf(answer);
  SendRaw(good, BytesOf(hello));
  EXPECT_TRUE(AcceptOne(*listener_).has_value());
}

bool Resolves(const char* host) {
  addrinfo* found = nullptr;
  if (getaddrinfo(host, nullptr, nullptr, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

TEST_F(TcpListenerTest, AddressesAreChecked) {
  const auto code = [&](const char* address, const char* advertise = "") {
    ListenOptions options;
    options.tcp_address = address;
    options.tcp_advertise = advertise;
    return fabric_->Listen(options).status().code();
  };
  for (const char* bad : {"", "localhost", ":80", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:x",
                          "127.0.0.1:-1", "127.0.0.1: 80"}) {
    EXPECT_EQ(code(bad), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(code("0.0.0.0:0"), StatusCode::kInvalidArgument);  // advertise what?
  EXPECT_EQ(code("0.0.0.0:0", "nonsense"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code("0.0.0.0:0", "127.0.0.1:0"), StatusCode::kOk);
  // A bare container may have no /etc/hosts: then the name is unknown, and the error states that.
  EXPECT_EQ(code("localhost:0"),
            Resolves("localhost") ? StatusCode::kOk : StatusCode::kUnavailable);
  EXPECT_EQ(code("192.0.2.1:0"), StatusCode::kUnavailable);  // not of this host
  const Answer answer = Invite();
  ListenOptions taken;
  taken.tcp_address = answer.address;
  const absl::Status status = fabric_->Listen(taken).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(answer.address));
  EXPECT_THAT(std::string(status.message()), HasSubstr("choose a free port"));
}

TEST_F(TcpListenerTest, AdvertisedAddressIsSent) {
  ListenOptions options;
  options.tcp_address = "0.0.0.0:0";
  options.tcp_advertise = "127.0.0.1:0";
  auto listener = fabric_->Listen(options);
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto real = NewTcpFabric(Clock::Real());
  const test::LanePair pair = test::MakeLane(*real, **listener, kShape, Soon());
  EXPECT_TRUE(pair.request && pair.serve);
}

// One end of a lane, and a raw socket as its peer.
struct RawPeer {
  RawPeer() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    end = UniqueFd(ends[0]);
    peer = UniqueFd(ends[1]);
  }
  std::unique_ptr<ServeLane> Serve() {
    auto lane =
        NewTcpServeLane(std::move(end), *LaneMemory::CreatePrivate(kShape), /*watch=*/nullptr);
    EXPECT_TRUE(lane.ok()) << lane.status();
    return *std::move(lane);
  }
  std::unique_ptr<RequestLane> Request() {
    auto lane = NewTcpRequestLane(std::move(end), kShape, /*watch=*/nullptr);
    EXPECT_TRUE(lane.ok()) << lane.status();
    return *std::move(lane);
  }
  void Send(FrameHeader frame, std::span<const std::byte> payload = {}) {
    SendRaw(peer, BytesOf(frame));
    SendRaw(peer, payload);
  }
  UniqueFd end;
  UniqueFd peer;
};

TEST(TcpLane, MalformedRequestsBreakIt) {
  const FrameHeader bad[] = {
      {kShape.slot_count, 1}, {0xffffffff, 1}, {0, kShape.request_bytes_max + 1}, {0, 0xffffffff}};
  for (const FrameHeader& frame : bad) {
    RawPeer raw;
    auto lane = raw.Serve();
    raw.Send(frame);
    EXPECT_EQ(AwaitDown(*lane).code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(HungUp(raw.peer));
  }
}

TEST(TcpLane, SlotsOutOfTurnBreakIt) {
  {
    RawPeer raw;
    auto lane = raw.Serve();
    raw.Send({1, 0});
    raw.Send({1, 0});  // before its reply
    EXPECT_EQ(AwaitDown(*lane).code(), StatusCode::kInvalidArgument);
  }
  {
    RawPeer raw;
    auto lane = raw.Request();
    raw.Send({1, 0});  // a reply to nothing
    EXPECT_EQ(AwaitDown(*lane).code(), StatusCode::kInvalidArgument);
  }
}

// The holder fills the socket with replies; a request for a slot whose reply is not yet sent out
// would let the peer change what the kernel reads.
TEST(TcpLane, NoNewRequestIntoASlotStillBeingSent) {
  RawPeer raw;
  const int small = 4096;
  ASSERT_EQ(setsockopt(raw.end.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  auto lane = raw.Serve();
  for (uint32_t slot = 0; slot < kShape.slot_count; ++slot) raw.Send({slot, 0});
  for (uint32_t i = 0; i < kShape.slot_count; ++i) {
    const std::optional<Arrival> arrival = AwaitRequest(*lane);
    ASSERT_TRUE(arrival.has_value());
    ASSERT_TRUE(lane->Post(arrival->slot, kShape.reply_bytes_max).ok());
  }
  raw.Send({kShape.slot_count - 1, 0});
  EXPECT_EQ(AwaitDown(*lane).code(), StatusCode::kInvalidArgument);
}

TEST(TcpLane, FramesByteByByte) {
  RawPeer raw;
  auto lane = raw.Serve();
  std::vector<std::byte> payload(300);
  FillPattern(3, payload);
  const FrameHeader frame = {2, 300};
  std::vector<std::byte> stream(sizeof(frame));
  std::memcpy(stream.data(), &frame, sizeof(frame));
  stream.insert(stream.end(), payload.begin(), payload.end());
  Arrival arrival;
  for (size_t i = 0; i < stream.size(); ++i) {
    EXPECT_EQ(lane->Poll({&arrival, 1}), 0u) << "byte " << i;
    SendRaw(raw.peer, std::span(stream).subspan(i, 1));
  }
  ASSERT_EQ(lane->Poll({&arrival, 1}), 1u);
  EXPECT_EQ(arrival.slot, 2u);
  EXPECT_EQ(arrival.bytes, 300u);
  EXPECT_TRUE(HasPattern(3, lane->request(2).first(300)));
}

// Many frames in one read, cut at every place: Arm accounts for what Poll leaves behind.
TEST(TcpLane, RandomCuts) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    RawPeer raw;
    auto lane = raw.Serve();
    std::vector<std::byte> stream;
    std::vector<uint32_t> sizes;
    for (uint32_t slot = 0; slot < kShape.slot_count; ++slot) {
      sizes.push_back(rng() % 2 == 0 ? rng() % 50 : rng() % (kShape.request_bytes_max + 1));
      const FrameHeader frame = {slot, sizes[slot]};
      const auto header = BytesOf(frame);
      stream.insert(stream.end(), header.begin(), header.end());
      const size_t start = stream.size();
      stream.resize(start + sizes[slot]);
      FillPattern(slot + seed, std::span(stream).subspan(start));
    }
    uint32_t arrived = 0;
    size_t sent = 0;
    while (arrived < kShape.slot_count) {
      if (sent < stream.size()) {
        const size_t piece = std::min<size_t>(1 + rng() % 6000, stream.size() - sent);
        SendRaw(raw.peer, std::span(stream).subspan(sent, piece));
        sent += piece;
      }
      Arrival arrival;
      if (lane->Poll({&arrival, 1}) == 0) {
        ASSERT_TRUE(lane->status().ok()) << lane->status();
        ASSERT_LT(sent, stream.size() + (lane->Arm() ? 0 : 1)) << "something was lost";
        continue;
      }
      ASSERT_EQ(arrival.slot, arrived);
      ASSERT_EQ(arrival.bytes, sizes[arrived]);
      ASSERT_TRUE(HasPattern(arrived + seed, lane->request(arrived).first(arrival.bytes)));
      ++arrived;
    }
  }
}

TEST(TcpLane, HalfAFrameThenTheEnd) {
  RawPeer raw;
  auto lane = raw.Serve();
  raw.Send({0, 100}, std::vector<std::byte>(50));
  raw.peer.Reset();
  EXPECT_EQ(AwaitDown(*lane).code(), StatusCode::kUnavailable);
}

// With a tiny kernel buffer nothing fits at once: Post never blocks, polling sends the rest.
TEST(TcpLane, PartialSendsContinue) {
  RawPeer raw;
  const int small = 4096;
  ASSERT_EQ(setsockopt(raw.end.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  auto lane = raw.Request();
  for (uint32_t i = 0; i < kShape.slot_count; ++i) {
    const std::optional<uint32_t> slot = lane->Acquire();
    FillPattern(*slot, lane->request(*slot));
    ASSERT_TRUE(lane->Post(*slot, kShape.request_bytes_max).ok());
  }
  std::thread reader([&] {
    std::vector<std::byte> payload(kShape.request_bytes_max);
    for (uint32_t i = 0; i < kShape.slot_count; ++i) {
      FrameHeader frame;
      EXPECT_TRUE(ReceiveAll(raw.peer.get(), WritableBytesOf(frame), *Clock::Real(), Soon()).ok());
      EXPECT_TRUE(ReceiveAll(raw.peer.get(), payload, *Clock::Real(), Soon()).ok());
      EXPECT_EQ(frame.bytes, kShape.request_bytes_max);
      EXPECT_TRUE(HasPattern(frame.slot, payload));
      const FrameHeader reply = {frame.slot, 0};
      EXPECT_TRUE(SendAll(raw.peer.get(), BytesOf(reply), *Clock::Real(), Soon()).ok());
    }
  });
  for (uint32_t i = 0; i < kShape.slot_count; ++i) {
    EXPECT_TRUE(AwaitReply(*lane).has_value()) << lane->status();
  }
  reader.join();
}

// The kernel reads the runs until it has taken all, and a frame cut anywhere in them continues.
TEST(TcpLane, GatheringUntilTheKernelHasAll) {
  RawPeer raw;
  const int small = 4096;
  ASSERT_EQ(setsockopt(raw.end.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  auto lane = raw.Serve();
  raw.Send({0, 0});
  raw.Send({1, 0});
  std::vector<std::byte> memory(kShape.reply_bytes_max);
  FillPattern(5, memory);
  std::vector<std::span<const std::byte>> runs;
  for (size_t at = 100; at < memory.size(); at += 1990) {
    runs.push_back(std::span(memory).subspan(at, std::min<size_t>(1990, memory.size() - at)));
  }
  for (int i = 0; i < 2; ++i) {
    const std::optional<Arrival> arrival = AwaitRequest(*lane);
    ASSERT_TRUE(arrival.has_value());
    std::memcpy(lane->reply(arrival->slot).data(), memory.data(), 100);
    ASSERT_TRUE(lane->PostGather(arrival->slot, 100, runs, RegionType::kHost).ok());
  }
  EXPECT_TRUE(lane->gathering(0));
  EXPECT_TRUE(lane->gathering(1));
  std::vector<std::byte> payload(kShape.reply_bytes_max);
  std::thread reader([&] {
    for (uint32_t i = 0; i < 2; ++i) {
      FrameHeader frame;
      EXPECT_TRUE(ReceiveAll(raw.peer.get(), WritableBytesOf(frame), *Clock::Real(), Soon()).ok());
      EXPECT_TRUE(ReceiveAll(raw.peer.get(), payload, *Clock::Real(), Soon()).ok());
      EXPECT_EQ(frame.slot, i);
      EXPECT_EQ(frame.bytes, kShape.reply_bytes_max);
      EXPECT_TRUE(HasPattern(5, payload));
    }
    raw.Send({2, 7}, std::vector<std::byte>(7));
  });
  const std::optional<Arrival> arrival = AwaitRequest(*lane);  // sends the rest meanwhile
  reader.join();
  ASSERT_TRUE(arrival.has_value());
  EXPECT_FALSE(lane->gathering(0));
  EXPECT_FALSE(lane->gathering(1));
  EXPECT_FALSE(lane->gathering(2));
}

TEST(TcpDialer, AnAbsentPeerIsUnavailable) {
  auto fabric = NewTcpFabric(Clock::Real());
  const auto code = [&](const char* address) {
    auto dialer = fabric->Dial(kShape);
    EXPECT_TRUE(dialer.ok());
    const std::string answer = EncodeAnswer(FabricKind::kTcp, {RandomInvitationKey(), address});
    return (*dialer)->Connect(answer, Soon()).status().code();
  };
  EXPECT_EQ(code("127.0.0.1:1"), StatusCode::kUnavailable);
  EXPECT_EQ(code("127.0.0.1"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(""), StatusCode::kInvalidArgument);
}

// How many of this process's sockets poll busily for `us`.
int BusyPollers(int us) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int value = 0;
    socklen_t bytes = sizeof(value);
    if (getsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &value, &bytes) == 0 && value == us) ++count;
  }
  return count;
}

TEST(TcpFabric, BusyPollIsAnOptionOfBothEnds) {
  const int us = 57;
  const UniqueFd probe(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool may = setsockopt(probe.get(), SOL_SOCKET, SO_BUSY_POLL, &us, sizeof(us)) == 0;
  const int before = BusyPollers(us);
  for (const uint32_t requested : {0u, 57u, kBusyPollUsMax + 1}) {
    auto fabric = NewTcpFabric(Clock::Real(), TcpOptions{requested});
    auto listener = fabric->Listen({});
    ASSERT_TRUE(listener.ok()) << listener.status();
    const test::LanePair pair = test::MakeLane(*fabric, **listener, kShape, Soon());
    ASSERT_TRUE(pair.request && pair.serve);  // refused or not
    EXPECT_EQ(BusyPollers(us) - before, requested == 57 && may ? 2 : 0);
    EXPECT_EQ(BusyPollers(kBusyPollUsMax), requested > kBusyPollUsMax && may ? 2 : 0);
  }
}

// A listener whose thread never accepts: the dialer's deadline ends the wait.
TEST_F(TcpListenerTest, ConnectHasADeadline) {
  const Answer where = Invite();
  auto fabric = NewTcpFabric(Clock::Real());
  auto dialer = fabric->Dial(kShape);
  ASSERT_TRUE(dialer.ok());
  const Instant deadline = Clock::Real()->Now() + std::chrono::milliseconds(30);
  EXPECT_EQ((*dialer)->Connect(EncodeAnswer(FabricKind::kTcp, where), deadline).status().code(),
            StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ckv
