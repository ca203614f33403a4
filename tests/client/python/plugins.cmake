# Plug-ins of serving engines: contract tests on stand-ins. They need Debian's torch, which only
# /usr/bin/python3 sees; without it they are skipped (77).
foreach(plugin ckv_vllm ckv_sglang)
  add_test(NAME ${plugin}_test COMMAND /usr/bin/python3 ${CMAKE_CURRENT_LIST_DIR}/${plugin}_test.py)
  set_tests_properties(${plugin}_test PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS client/python)
endforeach()
