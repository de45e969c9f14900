//! The page in a real browser. `hack/browser.sh` installs one and runs these tests.
use std::{fs, net::SocketAddr, path::PathBuf};

use serde_json::json;
use tokio::{net::TcpListener, runtime::Runtime};

use super::{browser::Browser, process::Process};

const WIDTHS: [u32; 2] = [360, 1440];
const SCHEMES: [&str; 2] = ["light", "dark"];
/// The longest time for which the page may not react, in milliseconds. On an idle machine it takes less than half of that.
const MAX_BLOCKED: f64 = 250.0;
/// The most rows that the page adds or changes before it reacts again.
const ROWS_AT_ONCE: f64 = 25.0;

/// The views, and a condition that is true once each is shown.
const VIEWS: [(&str, &str); 8] = [
    ("controllers", "document.querySelector('.chart .line[d*=L]')"),
    ("keys", "document.querySelector('tbody tr')"),
    ("passes", "document.querySelector('.timeline path') && document.querySelector('tbody tr')"),
    ("informers", "document.querySelector('tbody tr')"),
    ("leadership", "document.querySelectorAll('tbody tr').length > 2"),
    ("webhook", "document.querySelector('tbody tr')"),
    (
        "key/lamps.demo.reknit.dev/shop%2Flamp-0012",
        "document.querySelector('dl').textContent.includes('storm')",
    ),
    ("key/lamps.demo.reknit.dev/shop%2Flamp-0001", "document.querySelectorAll('tbody tr').length > 3"),
];

/// The texts with less contrast than WCAG's level AA asks of normal text, 4.5 to 1.
const FAINT_TEXTS: &str = "(() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color[3] !== 0) return color;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || !parent.getClientRects().length || parent.closest('noscript')) continue;
    const [a, b] = [parse(getComputedStyle(parent).color), behind(parent)].map(luminance);
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(`${node.data.trim()}: ${contrast.toFixed(2)}`);
  }
  return faint.join('\\n');
})()";

/// The elements that reach beyond the window.
const OVERFLOWING: &str = "[...document.querySelectorAll('body *')]
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 0.5 && !node.closest('thead'))
  .map((node) => node.outerHTML.slice(0, 200)).concat(
    document.scrollingElement.scrollWidth > innerWidth ? ['the page scrolls sideways'] : []).join('\\n')";

/// Bars elsewhere than where they are clicked would lead to other passes.
const IS_TIMELINE_AS_WIDE_AS_ITS_PLACE: &str = "[...document.querySelectorAll('.timeline')]
  .every((svg) => svg.viewBox.baseVal.width === svg.clientWidth)";

/// Serves the console of a process with this number of Lamps. The runtime keeps it running.
fn serve(lamps: usize) -> (Runtime, SocketAddr) {
    serve_at(lamps, ([127, 0, 0, 1], 0).into())
}

/// Serves the console at this address.
fn serve_at(lamps: usize, address: SocketAddr) -> (Runtime, SocketAddr) {
    let runtime = Runtime::new().unwrap();
    let address = runtime.block_on(async {
        let process = Process::start(lamps).await;
        process.wait_until_settled(lamps.min(900)).await;
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            process.console.server().run(listener, std::future::pending()).await;
        });
        address
    });
    (runtime, address)
}

fn resize(browser: &mut Browser, width: u32, scheme: &str) {
    let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
    browser.call("Emulation.setDeviceMetricsOverride", size);
    let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
    browser.call("Emulation.setEmulatedMedia", json!({"features": features}));
}

fn open(browser: &mut Browser, address: SocketAddr, view: &str, is_shown: &str) {
    browser.call("Page.navigate", json!({"url": format!("http://{address}/debug/reknit/#/{view}")}));
    let title = view.rsplit('/').next().unwrap().replace("%2F", "/");
    let is_open = format!("document.title.startsWith('{title} ')");
    browser.wait_for(&format!(
        "{is_open} && document.getElementById('status').textContent === 'live' && {is_shown}"
    ));
}

/// The folder of the screenshots, which people look at.
fn screenshots() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/console");
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn nothing_overflows_or_is_faint_or_unlabelled_at_360_and_1440_pixels_in_light_and_dark() {
    let (_runtime, address) = serve(40);
    let mut browser = Browser::start();
    for (view, is_shown) in VIEWS {
        for (width, scheme) in WIDTHS.into_iter().flat_map(|width| SCHEMES.map(|scheme| (width, scheme))) {
            resize(&mut browser, width, scheme);
            open(&mut browser, address, view, is_shown);
            let name = format!("{}-{width}-{scheme}", view.replace("%2F", "-").replace(['/', '.'], "-"));
            browser.wait_for(IS_TIMELINE_AS_WIDE_AS_ITS_PLACE);
            fs::write(screenshots().join(format!("{name}.png")), browser.screenshot()).unwrap();
            assert_eq!(browser.evaluate(OVERFLOWING), "", "{name}");
            assert_eq!(browser.evaluate(FAINT_TEXTS), "", "{name}");
            let background = browser.evaluate("getComputedStyle(document.body).backgroundColor");
            assert_eq!(background == "rgb(255, 255, 255)", scheme == "light", "{name}: {background}");
        }
        assert_labelled(&mut browser, view);
    }
    let elsewhere = format!(
        "performance.getEntriesByType('resource').filter(({{ name }}) => !name.startsWith('http://{address}/')).length"
    );
    assert_eq!(browser.evaluate(&elsewhere), 0);
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Fails if a control, an image or a table of the page has no name for a screen reader, or if there are no landmarks.
fn assert_labelled(browser: &mut Browser, view: &str) {
    let tree = browser.call("Accessibility.getFullAXTree", json!({}));
    let nodes: Vec<_> =
        tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] == false).collect();
    let has_role = |role: &str| nodes.iter().any(|node| node["role"]["value"] == role);
    for role in ["navigation", "main", "banner", "heading", "status"] {
        assert!(has_role(role), "{view}: there is no {role}");
    }
    assert!(
        view == "controllers" || (has_role("table") && has_role("row") && has_role("columnheader")),
        "{view}"
    );
    for node in nodes {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        let is_named = node["name"]["value"].as_str().is_some_and(|name| !name.trim().is_empty());
        let needs_name =
            ["button", "link", "searchbox", "combobox", "image", "img", "table", "region"].contains(&role);
        assert!(is_named || !needs_name, "{view}: {node}");
    }
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn the_keyboard_reaches_a_key_and_opens_its_page() {
    let (_runtime, address) = serve(40);
    let mut browser = Browser::start();
    resize(&mut browser, 1440, "light");
    open(&mut browser, address, "keys", "document.querySelector('tbody a')");
    let focused = "document.activeElement.closest('tbody') && document.activeElement.hash";
    let mut tabs = 0;
    while !browser.evaluate(focused).is_string() {
        browser.press("Tab", 9);
        tabs += 1;
        assert!(tabs < 30, "Tab does not reach the rows");
    }
    let outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "the focus is visible");
    browser.press("Enter", 13);
    browser.wait_for(
        "location.hash.startsWith('#/key/lamps.demo.reknit.dev/') && document.querySelector('.command')",
    );
    assert_eq!(browser.evaluate("document.activeElement.id"), "main", "the focus follows to the page");
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Notes each control that gets the focus, and whether its outline shows it.
const NOTE_FOCUS: &str = "document.addEventListener('focusin', ({ target }) => {
  target.dataset.reached = getComputedStyle(target).outlineStyle === 'none' ? 'without outline' : 'yes';
})";

/// The controls that are shown and have not got the focus.
const NOT_REACHED: &str =
    "[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]
  .filter((node) => node.checkVisibility() && !node.disabled && node.dataset.reached !== 'yes')
  .map((node) => `${node.outerHTML.slice(0, 200)} ${node.dataset.reached ?? ''}`).join('\\n')";

/// Presses Tab until the focus is on an element for which this condition is true, as `node`.
fn tab_to(browser: &mut Browser, condition: &str) {
    let found = format!("((node) => Boolean({condition}))(document.activeElement)");
    for _ in 0..100 {
        browser.press("Tab", 9);
        if browser.evaluate(&found) == true {
            return;
        }
    }
    panic!("Tab does not reach {condition}");
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn the_keyboard_reaches_every_control_of_each_view() {
    let (_runtime, address) = serve(20);
    let mut browser = Browser::start();
    resize(&mut browser, 1440, "light");
    for (view, is_shown) in VIEWS {
        open(&mut browser, address, view, is_shown);
        browser.evaluate("document.getElementById('pause').ariaPressed === 'true' || document.getElementById('pause').click()");
        browser.evaluate("new Promise((resolve) => setTimeout(resolve, 2000))"); // for answers on their way
        browser.evaluate(NOTE_FOCUS);
        for _ in 0..200 {
            browser.press("Tab", 9);
            if browser.evaluate(NOT_REACHED) == "" {
                break;
            }
        }
        assert_eq!(browser.evaluate(NOT_REACHED), "", "{view}");
    }
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn the_filter_the_pause_the_requests_and_the_commands_work_by_keyboard() {
    let (_runtime, address) = serve(20);
    let mut browser = Browser::start();
    resize(&mut browser, 1440, "light");
    open(&mut browser, address, "passes", "document.querySelector('tbody tr')");
    tab_to(&mut browser, "node.type === 'search'");
    browser.call("Input.insertText", json!({"text": "lamp-0001"}));
    browser.wait_for(
        "[...document.querySelectorAll('tbody tr')].every((row) => row.textContent.includes('lamp-0001'))",
    );

    let key = "key/lamps.demo.reknit.dev/shop%2Flamp-0001";
    open(
        &mut browser,
        address,
        key,
        "document.querySelector('summary') && document.querySelector('.command')",
    );
    tab_to(&mut browser, "node.id === 'pause'");
    browser.press("Enter", 13);
    browser.wait_for("document.getElementById('pause').ariaPressed === 'true'");
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 2000))"); // for answers on their way
    tab_to(&mut browser, "node.matches('.command button')");
    browser.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })");
    browser.press("Enter", 13);
    browser.wait_for("document.activeElement.textContent === 'Selected'");
    tab_to(&mut browser, "node.matches('summary')");
    browser.press("Enter", 13);
    browser.wait_for("document.activeElement.parentElement.open");
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn updates_stop_when_they_are_paused() {
    let (_runtime, address) = serve(3);
    let mut browser = Browser::start();
    open(&mut browser, address, "controllers", "document.querySelector('.chart')");
    let requests = "performance.getEntriesByType('resource').length";
    let after = |browser: &mut Browser| {
        browser.evaluate(&format!("new Promise((resolve) => setTimeout(() => resolve({requests}), 3000))"))
    };
    let before = browser.evaluate(requests);
    assert_ne!(after(&mut browser), before);
    browser.evaluate("document.getElementById('pause').click()");
    browser.evaluate("new Promise((resolve) => setTimeout(resolve, 2000))");
    let paused = browser.evaluate(requests);
    assert_eq!(after(&mut browser), paused);
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn the_timeline_is_as_wide_as_a_resized_window_while_updates_are_paused() {
    let (_runtime, address) = serve(3);
    let mut browser = Browser::start();
    resize(&mut browser, 360, "light");
    open(&mut browser, address, "passes", "document.querySelector('.timeline path')");
    browser.evaluate("document.getElementById('pause').click()");
    for width in [1440, 360] {
        resize(&mut browser, width, "light");
        browser.wait_for(&format!("innerWidth === {width} && {IS_TIMELINE_AS_WIDE_AS_ITS_PLACE}"));
    }
    assert_eq!(browser.errors, Vec::<String>::new());
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn a_restarted_process_shows_its_name_and_no_negative_rates() {
    let (first, address) = serve(40);
    let mut browser = Browser::start();
    let rate = "document.querySelector('figure strong').textContent";
    open(&mut browser, address, "controllers", &format!("{rate} !== '–'"));
    browser.evaluate("document.getElementById('component').textContent = 'another program'");
    drop(first);
    browser.wait_for("document.getElementById('status').textContent.startsWith('no answer')");
    let runtime = serve_at(3, address);
    browser.wait_for("document.getElementById('component').textContent === 'lights'");
    browser.wait_for(&format!("document.getElementById('status').textContent === 'live' && {rate} === '0'"));
    let lowest = "Math.max(...document.querySelector('.line').getAttribute('d').match(/[\\d.-]+ [\\d.-]+/g)
        .map((point) => Number(point.split(' ')[1])))";
    assert_eq!(browser.evaluate(lowest), 37, "no point is below the base line");
    drop(runtime);
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn a_command_is_selected_if_the_browser_has_no_clipboard() {
    let (_runtime, address) = serve(3);
    let mut browser = Browser::start();
    open(
        &mut browser,
        address,
        "key/lamps.demo.reknit.dev/shop%2Flamp-0001",
        "document.querySelector('.command button')",
    );
    browser.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })");
    browser.evaluate("document.querySelector('.command button').click()");
    browser.wait_for("document.querySelector('.command button').textContent === 'Selected'");
    let selected = browser.evaluate("getSelection().toString()");
    assert!(selected.as_str().unwrap().starts_with("kubectl annotate "), "{selected}");
}

#[test]
#[ignore = "needs Chromium: hack/browser.sh"]
fn a_thousand_keys_do_not_make_the_page_stutter() {
    let (_runtime, address) = serve(2000);
    let mut browser = Browser::start();
    resize(&mut browser, 1440, "light");
    for view in ["keys", "passes"] {
        open(&mut browser, address, "informers", "document.querySelector('tbody tr')");
        // The page is measured while it builds a thousand rows and updates them. Other work on the machine may delay
        // two of five measurements.
        let measure = format!(
            "new Promise((resolve) => {{ let longest = 0, most = 0; \
             const tasks = new PerformanceObserver((list) => {{ \
               for (const {{ duration }} of list.getEntries()) longest = Math.max(longest, duration); }}); \
             tasks.observe({{ type: 'longtask' }}); location.hash = '#/{view}'; \
             const rows = new MutationObserver((changes) => {{ \
               const changed = changes.filter(({{ target }}) => target.isConnected).flatMap( \
                 ({{ target, addedNodes }}) => [target.closest?.('tr'), ...addedNodes]); \
               const rows = new Set(changed.filter((node) => node?.tagName === 'TR')); \
               most = Math.max(most, rows.size); }}); \
             rows.observe(document.getElementById('main'), {{ childList: true, subtree: true, characterData: true }}); \
             setTimeout(() => {{ tasks.disconnect(); rows.disconnect(); location.hash = '#/informers'; \
               resolve([longest, most]); }}, 6000); }})"
        );
        let (mut blocked, mut rows) = (Vec::new(), 0.0);
        for _ in 0..5 {
            let measured = browser.evaluate(&measure);
            browser.wait_for("location.hash === '#/informers'");
            blocked.push(measured[0].as_f64().unwrap());
            rows = f64::max(rows, measured[1].as_f64().unwrap());
        }
        println!(
            "{view}: the longest tasks of five times six seconds took {blocked:?} ms, {rows} rows at once"
        );
        blocked.sort_by(f64::total_cmp);
        assert!(blocked[2] < MAX_BLOCKED, "{view}: {blocked:?}");
        assert!(rows > 0.0 && rows <= ROWS_AT_ONCE, "{view}: {rows} rows at once");
        open(&mut browser, address, view, "document.querySelectorAll('tbody tr').length >= 900");
        let rows = browser.evaluate("document.querySelectorAll('tbody tr').length");
        println!("{view}: {rows} rows");
    }
}
