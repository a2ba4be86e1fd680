//! Templates in the manner of those that models come with, and of those that nobody should run.

use serde_json::json;

use super::*;

fn chat(template: &str) -> Result<Chat> {
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template});
    Chat::from_files(&[("tokenizer_config.json".to_owned(), config.to_string().into_bytes())])
        .map(|chat| chat.expect("a template is there"))
}

fn said(conversation: &[(&str, &str)]) -> Vec<Message> {
    let message = |&(role, content): &(&str, &str)| Message { role: role.to_owned(), content: content.to_owned() };
    conversation.iter().map(message).collect()
}

/// The 14th of March 2026.
fn day() -> Timestamp {
    "2026-03-14T15:09:26Z".parse().unwrap()
}

/// What the template makes of these messages; the error's text where it refuses.
fn rendered(template: &str, conversation: &[(&str, &str)]) -> String {
    chat(template)
        .and_then(|chat| chat.render_at(&said(conversation), true, day()))
        .unwrap_or_else(|error| error.to_string())
}

/// What an expression comes to, with one message of the user's.
fn value(expression: &str) -> String {
    rendered(&format!("{{{{ {expression} }}}}"), &[("user", "  Hello, world! ")])
}

#[test]
fn turns_are_marked() {
    // Blocks take the spaces before them and the line break after them along.
    let template = "{% for message in messages %}\n    {% if loop.first and message.role != 'system' %}\n\
        <|im_start|>system\nBe kind.<|im_end|>\n    {% endif %}\n\
        <|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}\n\
        {% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n";
    assert_eq!(
        rendered(template, &[("user", " Hi <b>&'\" ")]),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi <b>&'\"<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn special_tokens_dates_and_absent_tools_are_known() {
    let template = "{{- bos_token }}{%- if not date_string is defined %}{%- set date_string = \
        strftime_now('%d %b %Y') %}{%- endif %}{%- if tools is not none %}tools{%- endif %}\
        {%- set loop_messages = messages[1:] %}Today: {{ date_string }}. {{ loop_messages|length }}{{ eos_token }}";
    assert_eq!(rendered(template, &[("system", "s"), ("user", "u")]), "<s>Today: 14 Mar 2026. 1</s>");
    // Jinja for Rust calls what is none iterable, and then fails to count it.
    assert_eq!(value("tools is iterable and tools|length > 0"), "False");
    assert_eq!(value("'a' is iterable and [] is iterable and messages is iterable and 1 is not iterable"), "True");
    assert!(rendered("{{ strftime_now('%') }}", &[]).contains("strftime_now(`%`)"));
}

#[test]
fn a_template_refuses_in_its_own_words() {
    let template = "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\n\
        {{ raise_exception('Roles must alternate user/assistant') }}{% endif %}{{ message.content }}{% endfor %}";
    assert_eq!(rendered(template, &[("user", "a"), ("assistant", "b")]), "ab");
    let chat = chat(template).unwrap();
    let error = chat.render(&said(&[("user", "a"), ("user", "b")]), true).unwrap_err();
    assert_eq!(error.to_string(), "the chat template cannot be rendered: Roles must alternate user/assistant (line 2)");
    assert_eq!(error.kind(), "template");
    assert!(error.hint().unwrap().contains("plain text"));
}

#[test]
fn thoughts_of_earlier_turns_are_left_out() {
    // Backwards through the messages, with a namespace that outlives the loop, and an answer cut at a mark.
    let template = "{%- set ns = namespace(last=-1) %}{%- for message in messages[::-1] %}\
        {%- if ns.last < 0 and message.content is string and message.role == 'user' and not \
        message.content.startswith('<tool>') %}{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}\
        {%- endfor %}{{ ns.last }}:{% for message in messages %}\
        {{- message.content.split('</think>')[-1].lstrip('\\n') }};{% endfor %}";
    let messages = [("user", "q"), ("assistant", "<think>hm</think>\n\na"), ("user", "r"), ("tool", "<tool>")];
    assert_eq!(rendered(template, &messages), "2:q;a;r;<tool>;");
}

#[test]
fn the_methods_are_pythons() {
    for (expression, python) in [
        ("messages[0].content.strip()", "Hello, world!"),
        ("'xxaxx'.strip('x') ~ 'xax'.lstrip('x') ~ 'xax'.rstrip('x')", "aaxxa"),
        ("'a,b,c'.split(',', 1)|tojson", "[\"a\", \"b,c\"]"),
        ("'a,b,c'.rsplit(',', 1)|tojson", "[\"a,b\", \"c\"]"),
        ("' a  b '.split()|tojson", "[\"a\", \"b\"]"),
        ("'a\nb'.splitlines()|length", "2"),
        ("'ab'.startswith(('x', 'a')) and 'ab'.endswith('b')", "True"),
        ("'heLLo wOrld'.title() ~ 'hELLO'.capitalize() ~ 'a'.upper() ~ 'B'.lower()", "Hello WorldHelloAb"),
        ("'aaa'.replace('a', 'b', 2) ~ '-'.join(['x', 'y'])", "bbax-y"),
        ("'prefix'.removeprefix('pre') ~ 'a.rs'.removesuffix('.rs')", "fixa"),
        ("'éa'.find('a') ~ 'a'.find('b') ~ 'aXaX'.count('X')", "1-12"),
        ("{'a': 1}.items()|tojson ~ {'a': 1}.keys()|tojson ~ {'a': 1}.values()|tojson", "[[\"a\", 1]][\"a\"][1]"),
        ("{'a': 1}.get('a') ~ {}.get('a', 2) ~ ({}.get('a') is none)", "12True"),
        ("{'a': '<é>', 'b': [1, true, none]}|tojson", "{\"a\": \"<é>\", \"b\": [1, true, null]}"),
        ("{'a': [1]}|tojson(indent=2)", "{\n  \"a\": [\n    1\n  ]\n}"),
    ] {
        assert_eq!(value(expression), python, "{expression}");
    }
    assert!(value("'a'.encode()").contains("a string has no method `encode`"));
    assert!(value("[1].frobnicate()").contains("a sequence has no method `frobnicate`"));
    assert!(value("'a'.split('')").contains("an empty separator splits nothing"));
    assert!(value("'a'.upper(1)").contains("too many arguments"));
}

#[test]
fn marks_for_training_are_passed_over() {
    let template = "{% generation %}a{% endgeneration %} {%- generation -%} b {%- endgeneration -%} {{ '%}' }}";
    assert_eq!(rendered(template, &[]), "ab%}");
}

#[test]
fn the_template_is_found_where_it_lies() {
    let files = |files: &[(&str, &str)]| -> Vec<NamedFile> {
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    };
    let of = |list: &[(&str, &str)]| {
        Chat::from_files(&files(list)).map(|chat| chat.map(|chat| chat.render(&[], true).unwrap()))
    };
    assert_eq!(of(&[]).unwrap(), None);
    assert_eq!(of(&[("tokenizer_config.json", "{}")]).unwrap(), None);
    let config = ("tokenizer_config.json", r#"{"chat_template": "config"}"#);
    assert_eq!(of(&[config]).unwrap().unwrap(), "config");
    assert_eq!(of(&[config, ("chat_template.jinja", "file")]).unwrap().unwrap(), "file");
    let list = r#"{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}"#;
    assert_eq!(of(&[("tokenizer_config.json", list)]).unwrap().unwrap(), "d");
    for (config, reason) in [
        (r#"{"chat_template": [{"name": "rag", "template": "r"}]}"#, "none of the templates"),
        (r#"{"chat_template": 7}"#, "must be a text"),
        (r#"{"chat_template": "{% if %}"}"#, "its template is no Jinja: "),
        (r#"{"chat_template": "#, "EOF"),
    ] {
        let error = of(&[("tokenizer_config.json", config)]).unwrap_err().to_string();
        assert!(error.starts_with("`tokenizer_config.json` is not usable: ") && error.contains(reason), "{error}");
    }
    let error = Chat::from_files(&[("chat_template.jinja".to_owned(), vec![0xff])]).unwrap_err().to_string();
    assert!(error.contains("invalid utf-8"), "{error}");
    let error = chat(&"x".repeat(LARGEST_TEMPLATE + 1)).unwrap_err().to_string();
    assert!(error.contains("1048577 bytes"), "{error}");
}

#[test]
fn a_template_without_an_end_is_ended() {
    for (template, reason) in [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "more than 1000000 steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion limit"),
        ("{% for a in range(99) %}{{ 'x' * 1000000 }}{% endfor %}", "more than 67108864 bytes"),
        ("{% include 'secrets' %}", "secrets"),
    ] {
        let said = rendered(template, &[]);
        assert!(said.starts_with("the chat template cannot be rendered: ") && said.contains(reason), "{said}");
    }
}
