#include "server/web/http_head.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace ckv {
namespace {

TEST(HttpHead, TakesWhatProbesScrapersAndBrowsersSend) {
  struct Case {
    const char* bytes;
    const char* path;
    const char* query;
  };
  for (const Case& one : {
           Case{"GET / HTTP/1.1\r\n\r\n", "/", ""},
           Case{"GET /healthz HTTP/1.0\n\n", "/healthz", ""},
           Case{"GET /corpus.json?name=a%20b&x=1 HTTP/1.1\r\nHost: h\r\n\r\n", "/corpus.json",
                "name=a%20b&x=1"},
           Case{"GET /a%2Fb%c3%A9 HTTP/1.1\r\n\r\n", "/a/b\xc3\xa9", ""},
           Case{"GET http://host:9090/metrics?q HTTP/1.1\r\n\r\n", "/metrics", "q"},
           Case{"GET /../etc/passwd HTTP/1.1\r\n\r\n", "/../etc/passwd", ""},
       }) {
    const auto head = ParseHttpHead(one.bytes);
    ASSERT_TRUE(head.ok()) << one.bytes << head.status();
    EXPECT_EQ(head->method, "GET");
    EXPECT_EQ(head->path, one.path);
    EXPECT_EQ(head->query, one.query);
  }
}

TEST(HttpHead, RefusesMalformedHeads) {
  for (const char* bytes :
       {"", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2.0\r\n\r\n",
        "get / HTTP/1.1\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1 x\r\n\r\n",
        "GET healthz HTTP/1.1\r\n\r\n", "GET /%zz HTTP/1.1\r\n\r\n", "GET /% HTTP/1.1\r\n\r\n",
        "GET /%00 HTTP/1.1\r\n\r\n", "GET http://host HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n",
        "\x16\x03\x01\x02\n\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseHttpHead(bytes).status())) << bytes;
  }
}

TEST(HttpHead, IsWholeWithItsEmptyLine) {
  EXPECT_FALSE(HttpHeadIsWhole(""));
  EXPECT_FALSE(HttpHeadIsWhole("GET / HTTP/1.1\r\nHost: a\r\n"));
  EXPECT_TRUE(HttpHeadIsWhole("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_TRUE(HttpHeadIsWhole("GET / HTTP/1.1\n\nbody"));
}

TEST(HttpHead, NoBytesEndTheProcess) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 rng(seed);
    std::string bytes = seed % 2 == 0 ? "GET /" : "";
    for (size_t i = 0, n = rng() % 60; i < n; ++i)
      bytes += seed % 3 == 0 ? "%?&=/ HTP1.\r\n"[rng() % 14] : static_cast<char>(rng());
    const auto head = ParseHttpHead(bytes);
    if (head.ok()) {
      EXPECT_EQ(head->path.front(), '/') << "seed " << seed;
    }
    QueryValue(bytes, "a");
  }
}

TEST(QueryValue, DecodesTheFirstOfItsKey) {
  EXPECT_EQ(QueryValue("name=a%20b+c&name=d", "name"), "a b c");
  EXPECT_EQ(QueryValue("x=1&name=", "name"), "");
  EXPECT_EQ(QueryValue("names=1", "name"), "");
  EXPECT_EQ(QueryValue("name=%4", "name"), "");
  EXPECT_EQ(QueryValue("name=" + std::string(1025, 'a'), "name"), "");
  EXPECT_EQ(QueryValue("name=" + std::string(1024, 'a'), "name").size(), 1024u);
}

}  // namespace
}  // namespace ckv
