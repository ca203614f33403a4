# Plug-ins of serving engines: first their parts that call neither the engine nor ckv. They need torch;
# without it they are skipped (77).
foreach(plugin ckv_vllm ckv_sglang)
  add_test(NAME ${plugin}_test COMMAND ${CKV_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/${plugin}_test.py)
  set_tests_properties(${plugin}_test PROPERTIES TIMEOUT 120 SKIP_RETURN_CODE 77 LABELS client/bindings/python)
endforeach()
# Their parts without the engine over real holders. tests/engines has the engines.
if(CKV_PROGRAMS AND NOT CKV_SANITIZE)
  add_test(NAME plugins_e2e
           COMMAND ${CKV_PYTHON} ${CMAKE_CURRENT_LIST_DIR}/plugins_e2e.py --ckvd $<TARGET_FILE:ckvd>
                   --ckvctl $<TARGET_FILE:ckvctl> --library $<TARGET_FILE:ckv_c> --stand-ins ${CMAKE_BINARY_DIR}/stand_in)
  set_tests_properties(plugins_e2e PROPERTIES TIMEOUT 180 SKIP_RETURN_CODE 77 LABELS "client/bindings/python;e2e")
endif()
