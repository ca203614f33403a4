// Goal: one reading of "host:port" for every place that takes an address.
// Method: a table of texts, each read and written back or refused.

#include "proto/base/host_port.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ckv {
namespace {

TEST(HostPort, ReadsAndWritesBack) {
  const struct {
    const char* text;
    const char* host;
    uint16_t port;
  } cases[] = {{"127.0.0.1:7400", "127.0.0.1", 7400},
               {"h1.rack2:1", "h1.rack2", 1},
               {"localhost:0", "localhost", 0},
               {"[::1]:65535", "::1", 65535},
               {"*:80", "*", 80}};
  for (const auto& [text, host, port] : cases) {
    const auto parsed = HostPort::Parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->host, host);
    EXPECT_EQ(parsed->port, port);
    EXPECT_EQ(parsed->ToString(), text);
  }
}

TEST(HostPort, RefusesAnythingElse) {
  for (const char* text :
       {"",      ":",       "host", ":1",    "h:",    "h:x",    "h:65536", "h:99999999999",
        "h:1x",  "h:-1",    "h:+1", "h:1 ",  "h h:1", "h\nh:1", "::1:80",  "[]:1",
        "[::1]", "[::1:80", "[",    "a[b]:1"}) {
    const auto parsed = HostPort::Parse(text);
    EXPECT_TRUE(absl::IsInvalidArgument(parsed.status())) << text;
  }
  EXPECT_FALSE(HostPort::Parse(std::string(255, 'h') + ":1").ok());
  EXPECT_TRUE(HostPort::Parse("h:0").ok());
  EXPECT_EQ(HostPort::Parse("h:0", /*port_min=*/1).status().message(),
            "'h:0' is not host:port with a port from 1 to 65535; an IPv6 host is in brackets");
  EXPECT_EQ(HostPort::Parse("h\n").status().message(),
            "'h\\n' is not host:port with a port from 0 to 65535; an IPv6 host is in brackets");
}

TEST(HostPort, DetectsHostsThatPeersCannotUse) {
  for (const char* text : {"0.0.0.0:1", "[::]:1", "*:1"}) {
    EXPECT_TRUE(HostPort::Parse(text)->IsWildcard()) << text;
    EXPECT_FALSE(HostPort::Parse(text)->IsLoopback()) << text;
  }
  for (const char* text : {"127.0.0.1:1", "127.1.2.3:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(HostPort::Parse(text)->IsLoopback()) << text;
    EXPECT_FALSE(HostPort::Parse(text)->IsWildcard()) << text;
  }
  EXPECT_FALSE(HostPort::Parse("10.0.0.1:1")->IsLoopback());
}

TEST(HostPort, ParsesAListOfPeers) {
  const auto three = ParsePeerAddresses("a:1,[fd00::2]:7400,10.0.0.1:65535", 3);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(*three, (std::vector<HostPort>{{"a", 1}, {"fd00::2", 7400}, {"10.0.0.1", 65535}}));
  EXPECT_EQ(ParsePeerAddresses("a:1", 1)->size(), 1u);
  for (const char* bad : {"", ",", "a:1,", ",a:1", "a:1,,b:1", "a:1, b:1", "a:1,b", "a:0,b:1"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePeerAddresses(bad, 8).status())) << bad;
  EXPECT_EQ(ParsePeerAddresses("a:1,b:1,a:1", 8).status().message(), "a:1 is in the list twice");
  EXPECT_EQ(ParsePeerAddresses("a:1,b:1,c:1", 2).status().message(), "more than 2 addresses");
}

}  // namespace
}  // namespace ckv
